"""The form of a subcommand and the arguments that several of them share.

Modules here import nothing heavy at their top: help must answer in under 0.3 s, so tvm, onnx, onnxruntime and
even numpy are imported inside the functions that need them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convopt.errors import DeviceMissing, InputError

if TYPE_CHECKING:
    import onnx_ir as ir

DEVICE_MISSING = DeviceMissing.exit_status  # also of documents that say so themselves
Document = dict[str, Any]
ReportProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Command:
    """One subcommand; its line in the list of all is in `convopt.cli.main`.

    fields: the paths in its JSON document, each with what stands there; part of the help. `a[]` is each
        element of the list a, `a{}` each value of the object a, whose keys are names.
    run: does the work and returns the document. show: prints the document for people. status: the exit
        status that the document asks for. serve: goes on behind the printed document until told to stop.
    """

    name: str
    description: str
    fields: Mapping[str, str]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, ReportProgress], Document]
    show: Callable[[Document], None]
    status: Callable[[Document], int] = lambda document: 0
    serve: Callable[[Document], None] | None = None


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command that optimizes a model takes."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME:D,D,...",
        help="the shape of an input, e.g. x:1,3,224,224; once for each input with dynamic dims",
    )
    parser.add_argument(
        "--target", default="cpu", help="cpu: this machine's (default), or one that `convopt targets` lists"
    )
    parser.add_argument(
        "--precision",
        default="fp32",
        help="of what is stored inside: fp32 (default), fp16, bf16; tf32: float32, products of it in tf32",
    )
    parser.add_argument(
        "--keep-fp32",
        action="append",
        default=[],
        metavar="NODE",
        help="whose products and result stay float32 in fp16, bf16 and tf32; repeatable",
    )
    parser.add_argument(
        "--threads", type=core_count, help="cores that the module uses (default: all usable ones)"
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="PASS", help="leave a pass out; repeatable"
    )
    parser.add_argument(
        "--algorithm",
        default="auto",
        help="of convolutions that have the choice: auto (default), direct, im2col",
    )
    parser.add_argument(
        "--im2col-cap",
        type=positive,
        metavar="BYTES",
        help="that an unfolded matrix may take (default: 64 MiB)",
    )
    parser.add_argument(
        "--workspace-cap",
        type=positive,
        metavar="BYTES",
        help="that all intermediates together may take; beyond it the command fails (default: no limit)",
    )
    parser.add_argument(
        "--tune", type=duration, metavar="TIME", help="to spend on measuring schedules first: 60s, 10m, 1h"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="equal bits for every number of threads; nothing measured is used",
    )
    parser.add_argument(
        "--cache-dir",
        type=folder,
        metavar="DIR",
        help="where compiled kernels and measurements are kept (default: $CONVOPT_CACHE, else the user's"
        " cache folder)",
    )


def compile_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments above as keywords of `convopt.optimize`."""
    options: dict[str, Any] = {
        "shapes": parse_shapes(arguments.shape) or None,
        "target": arguments.target,
        "precision": arguments.precision,
        "keep_fp32": tuple(arguments.keep_fp32),
        "skip": tuple(arguments.skip),
        "algorithm": arguments.algorithm,
        "deterministic": arguments.deterministic,
    }
    for name in ("threads", "im2col_cap", "workspace_cap", "tune", "cache_dir"):
        if (value := getattr(arguments, name)) is not None:
            options[name] = value
    return options


def refuse_compile_options(arguments: argparse.Namespace, used: Collection[str], why: str) -> None:
    """Raises InputError where one of the arguments above is given that is not `used`: it would be ignored."""
    parser = argparse.ArgumentParser()
    add_compile_arguments(parser)
    for name, default in vars(parser.parse_args([])).items():
        if name not in used and getattr(arguments, name) != default:
            raise InputError(f"--{name.replace('_', '-')}: {why}")


def require_program(module: Any, model: str) -> None:
    """Raises InputError where the inputs' dynamic dims were left unbound, so that nothing is compiled yet."""
    if not module.programs:
        dynamic = ", ".join(
            f"{info.name} {info.dims}"
            for info in module.inputs
            if info.shape is None or not all(isinstance(d, int) for d in info.shape)
        )
        raise InputError(f"{model}: dynamic dims; give --shape NAME:D,D,... for {dynamic}")


def require_static_inputs(model: ir.Model, path: str) -> None:
    """Raises InputError for dynamic dims: kernels are for known shapes, so nothing could be lowered."""
    from convopt.ir.values import static_shape

    dynamic = [f"{v.name} {v.shape}" for v in model.graph.inputs if static_shape(v) is None]
    if dynamic:
        raise InputError(f"{path}: dynamic dims; give --shape NAME:D,D,... for {', '.join(dynamic)}")


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


positive.__name__ = "positive integer"  # argparse names the type in its message


def core_count(text: str) -> int:
    """An argparse type: how many threads a module may be asked to have."""
    from convopt.runtime.execution import MOST_THREADS

    value = positive(text)
    if value > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"threads is {value}; expected an integer of 1 to {MOST_THREADS}")
    return value


core_count.__name__ = "positive integer"  # argparse names the type in its message


def positive_number(text: str) -> float:
    """An argparse type: a number above 0, and finite."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


positive_number.__name__ = "positive number"  # argparse names the type in its message


def folder(text: str) -> str:
    """An argparse type: the path of a folder, which need not be there yet."""
    if not text or "\0" in text or Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder: nothing could be kept there")
    return text


def duration(text: str) -> float:
    """An argparse type: `60s`, `10m`, `1.5h`, or plain seconds."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    value = float(text[:-1]) * unit if unit else float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


duration.__name__ = "duration such as 60s, 10m or 1h"  # argparse names the type in its message


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """`x:1,3,224,224` as {"x": (1, 3, 224, 224)}; a scalar is `x:`. The name may contain colons."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, colon, dims = text.rpartition(":")
        if not colon or not name:
            raise InputError(f"--shape {text}: expected NAME:D,D,..., e.g. x:1,3,224,224")
        if name in shapes:
            raise InputError(f"--shape {text}: {name!r} has a shape already")
        try:
            shape = tuple(int(dim) for dim in dims.split(",")) if dims else ()
        except ValueError:
            raise InputError(f"--shape {text}: dims must be integers") from None
        if any(dim < 0 for dim in shape):
            raise InputError(f"--shape {text}: dims must not be negative")
        shapes[name] = shape
    return shapes


def output_path(text: str, suffixes: tuple[str, ...]) -> Path:
    """The path of a file to write, checked before any work is done."""
    path = Path(text)
    if path.suffix not in suffixes:
        raise InputError(f"-o {text}: expected a file name that ends in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise InputError(f"-o {text}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"-o {text}: is a folder")
    if path.exists() and not path.is_file():  # a rename would put a file in the place of a device
        raise InputError(f"-o {text}: is no regular file")
    return path
