"""`convopt run`: one call of an artifact or a model."""

from __future__ import annotations

import argparse
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convopt.cli.command import (
    Command,
    Document,
    ReportProgress,
    add_compile_arguments,
    compile_options,
    output_path,
    refuse_compile_options,
)
from convopt.errors import InputError
from convopt.runtime.folders import written_whole

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="M", help="an artifact (.convopt) or a model (.onnx), which is optimized first"
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy|random",
        help="an input, in the type that -o would write; `random` (also for inputs not named): normal floats,"
        " small integers, always the same",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.npz",
        help="write the outputs, by name; bfloat16 and float8 as float32, 4-bit integers as 8-bit ones",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="calls to time, behind a first one (default: %(default)s)",
    )
    add_compile_arguments(parser)


def _run(arguments: argparse.Namespace, progress: ReportProgress) -> Document:
    import numpy as np

    import convopt

    output = output_path(arguments.output, (".npz",)) if arguments.output else None
    if arguments.repeat < 1:
        raise InputError(f"--repeat {arguments.repeat}: expected at least 1")
    given = parse_inputs(arguments.input)
    files = {name: read_array(name, path) for name, path in given.items() if path != "random"}
    if Path(arguments.model).suffix == ".convopt":
        refuse_compile_options(
            arguments, ("threads",), "an artifact is compiled already, this is fixed in it"
        )
        module = convopt.load(arguments.model, threads=arguments.threads)
    else:
        options = compile_options(arguments)
        if files:
            options["shapes"] = _shapes(arguments.model, files, options["shapes"] or {})
        module = convopt.optimize(arguments.model, **options, progress=progress)
    inputs = _complete(module, given, files)
    times = []
    for _ in range(1 + arguments.repeat):
        start = time.perf_counter()
        results = module.run(inputs)
        times.append(1e3 * (time.perf_counter() - start))
    first, *times = times  # it makes the threads and islands, and warms the caches
    if output:
        _write_arrays(output, results)
    written = {name: str(written_type(array.dtype)) for name, array in results.items()}
    return {
        "command": "run",
        "model": arguments.model,
        "output": str(output) if output else None,
        "first_ms": first,
        "calls": len(times),
        "median_ms": float(np.median(times)),
        "p95_ms": float(np.percentile(times, 95)),
        "p99_ms": float(np.percentile(times, 99)),
        "min_ms": min(times),
        "max_ms": max(times),
        "inputs": [_describe(name, array) for name, array in inputs.items()],
        "outputs": [
            _describe(name, array) | {"written": written[name] if output else None}
            for name, array in results.items()
        ],
    }


def parse_inputs(texts: list[str]) -> dict[str, str]:
    """`x=a.npy` as {"x": "a.npy"}; the name may contain `=` if the file's name does not."""
    given: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.rpartition("=")
        if not equals or not name or not path:
            raise InputError(f"--input {text}: expected NAME=FILE.npy or NAME=random")
        if name in given:
            raise InputError(f"--input {text}: {name!r} is given twice")
        given[name] = path
    return given


def _shapes(
    path: str, files: dict[str, Array], given: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """What to compile for: the extents of --shape, and the arrays' for inputs that have none there.

    Raises:
        InputError: an array of another type or shape than the model or --shape says.
    """
    from convopt.compiler import info_of
    from convopt.frontends.onnx_file import load
    from convopt.ir.layout import ROW_MAJOR
    from convopt.runtime.signature import as_array, check_shapes

    inputs = [value for value in load(path).graph.inputs if value.name in files]
    infos = [info_of(value, given, ROW_MAJOR) for value in inputs]
    arrays = [as_array(info, _as_input(info, files[info.name])) for info in infos]
    check_shapes(infos, [array.shape for array in arrays])
    return {name: array.shape for name, array in files.items()} | given


def read_array(name: str, path: str) -> Array:
    """The array of a .npy file; nothing in it is executed.

    Raises:
        InputError: not such a file, or one that holds objects.
    """
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"--input {name}={path}: not a readable .npy file of numbers: {error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"--input {name}={path}: holds several arrays; expected one .npy array")
    return array


def _complete(module: Any, given: dict[str, str], files: dict[str, Array]) -> dict[str, Array]:
    """The module's inputs in its order: arrays from files, random ones for the rest.

    Random arrays have the shapes of the first Program, or those of a static boundary.
    """
    import numpy as np

    from convopt.runtime.loaded import numpy_dtype

    names = [info.name for info in module.inputs]
    if unknown := [name for name in given if name not in names]:
        raise InputError(f"--input {unknown[0]}: the model's inputs are {', '.join(names)}")
    specs = module.programs[0].program.inputs if module.programs else module.inputs
    rng = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for spec in specs:
        if spec.name in files:
            inputs[spec.name] = _as_input(spec, files[spec.name])
        elif all(isinstance(dim, int) for dim in spec.shape):
            dtype = numpy_dtype(spec.dtype)
            drawn = (
                rng.integers(0, 2, spec.shape) if dtype.kind in "biuO" else rng.standard_normal(spec.shape)
            )
            inputs[spec.name] = (drawn.astype(str) if dtype.kind == "O" else drawn).astype(dtype)
        else:
            raise InputError(
                f"input {spec.name!r} has dynamic dims {spec.shape}; give --shape {spec.name}:D,D,..."
            )
    return inputs


def _write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """An .npz with the outputs' own names; `/` and others that a zip member may hold are kept.

    Strings are written as numpy's own, of fixed length: objects would be pickles. What numpy has no type for
    is written as float32, or int8 for integers, which hold every value of theirs: see `written_type`.
    """
    import io

    import numpy as np

    with written_whole(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            plain = array.astype(written_type(array.dtype), copy=False)
            np.lib.format.write_array(content, plain, allow_pickle=False)
            archive.writestr(f"{name}.npy", content.getvalue())


def written_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in a .npy file: numpy's own stay; bfloat16 and float8 are float32 there, int4 is int8."""
    import numpy as np

    if dtype.kind == "O":
        return np.dtype(str)
    if dtype.isbuiltin == 1:
        return dtype
    return np.dtype({"i": np.int8, "u": np.uint8}.get(dtype.name[0], np.float32))


def _as_input(info: Any, array: Array) -> Array:
    """The array of a file for an input; where numpy lacks the input's type, from the type that is written."""
    from convopt.runtime.loaded import numpy_dtype

    wanted = numpy_dtype(info.dtype)
    return array.astype(wanted) if wanted.kind == "V" and array.dtype == written_type(wanted) else array


def _describe(name: str, array: Array) -> dict[str, Any]:
    import numpy as np

    dtype, array = array.dtype, array.astype(written_type(array.dtype), copy=False)
    finite = np.isfinite(array) if array.dtype.kind == "f" else np.ones(array.shape, bool)
    known = array.dtype.kind in "fiub" and bool(finite.any())
    return {
        "name": name,
        "dtype": str(dtype),
        "shape": list(array.shape),
        "min": float(array[finite].min()) if known else None,
        "max": float(array[finite].max()) if known else None,
        "finite": bool(finite.all()),
    }


_SPREAD = {"p95": "95%", "p99": "99%", "min": "min", "max": "max"}


def _show(document: Document) -> None:
    from convopt.report.tables import Column, print_line, print_table

    columns = [
        Column(""),
        Column("name"),
        Column("dtype"),
        Column("shape"),
        Column("min", True),
        Column("max", True),
    ]
    rows = [
        (
            kind,
            array["name"],
            array["dtype"],
            "x".join(map(str, array["shape"])),
            "" if array["min"] is None else f"{array['min']:.4g}",
            "" if array["max"] is None else f"{array['max']:.4g}",
        )
        for kind in ("input", "output")
        for array in document[f"{kind}s"]
    ]
    print_table(document["model"], columns, rows)
    spread = "".join(f", {document[f'{name}_ms']:.3f} {label}" for name, label in _SPREAD.items())
    print_line(
        f"{document['median_ms']:.3f} ms median{spread if document['calls'] > 1 else ''}, "
        f"{document['first_ms']:.3f} the first call"
    )
    if document["output"]:
        print_line(f"{document['output']} written")
        for array in document["outputs"]:
            if array["written"] != array["dtype"] and array["dtype"] != "object":
                print_line(
                    f"{array['name']} is {array['dtype']}, which numpy lacks: {array['written']} there"
                )


_ARRAY_FIELDS = {
    "name": "in the model",
    "dtype": "as numpy or ml_dtypes names it",
    "shape[]": "extents",
    "min": "of the finite elements; null without any",
    "max": "of the finite elements; null without any",
    "finite": "whether there is no NaN and no infinity",
}

COMMAND = Command(
    name="run",
    description="""\
Runs an artifact or a model on arrays from files or on random ones. Of the options from --shape to --cache-dir
an artifact takes --threads only; it has the others fixed.""",
    fields={
        "model": "the path",
        "output": "the file written, or null",
        "first_ms": "of the first call, which is not counted among the others",
        "calls": "how many were counted (--repeat)",
        "median_ms": "of the counted calls",
        "p95_ms": "that 95% of the counted calls stay below; between two calls by linear interpolation",
        "p99_ms": "that 99% stay below",
        "min_ms": "of the counted calls",
        "max_ms": "of the counted calls",
        **{f"inputs[].{field}": text for field, text in _ARRAY_FIELDS.items()},
        **{f"outputs[].{field}": text for field, text in _ARRAY_FIELDS.items()},
        "outputs[].written": "dtype in the file, which is another where numpy lacks it; null without -o",
    },
    add_arguments=_add_arguments,
    run=_run,
    show=_show,
)
