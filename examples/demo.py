"""Two real models with trained weights, optimized, checked and timed beside onnxruntime: `make demo`.

    python examples/demo.py [--threads N] [--seconds S]

Both engines get the same input and run in turn on the same threads; the error is the largest
difference from onnxruntime without its optimizations, relative to the output's scale.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import onnx_ir as ir

import convopt
from convopt.bench.compare import max_error
from convopt.bench.engines import module_call, onnxruntime_call
from convopt.bench.inputs import bind_inputs
from convopt.bench.protocol import time_in_turn
from convopt.bench.real_models import MODELS, fetch
from convopt.bench.sample_inputs import sample_inputs
from convopt.errors import ConvoptError
from convopt.frontends.onnx_file import load
from convopt.report.documents import fallback_counts, placement_document
from convopt.report.progress import Progress
from convopt.report.tables import Column, print_line, print_table
from convopt.targets import host_cpu
from convopt.targets.cpu import usable_cores

DEMO_MODELS = ("det", "320n")

COLUMNS = (
    Column("model"),
    Column("input"),
    *(
        Column(title, number=True)
        for title in ("onnxruntime ms", "convopt ms", "ratio", "largest error", "convs")
    ),
    Column("fell back, and why"),
)


def demonstrate(name: str, threads: int, seconds: float) -> tuple[str, ...]:
    """One row of the table; prints how long the way to it took."""
    path = fetch(name)
    shapes = MODELS[name].shapes[0]
    start = time.perf_counter()
    with Progress() as progress:
        module = convopt.optimize(path, shapes=shapes, threads=threads, progress=progress)
    compiled = time.perf_counter() - start
    model = load(path)
    bind_inputs(model, shapes)
    inputs = sample_inputs(name)
    proto = ir.to_proto(model)
    ours, peer = module_call(module, inputs), onnxruntime_call(proto, inputs, threads, optimize=True)
    times = time_in_turn({"convopt": ours.call, "onnxruntime": peer.call}, seconds)
    error = max_error(ours.outputs(), onnxruntime_call(proto, inputs, threads, optimize=False).outputs())
    print_line(f"{name}: {MODELS[name].task}; from the file to a compiled module in {compiled:.1f} s")
    placed = placement_document(module.placement)
    return (
        name,
        ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in shapes.items()),
        f"{times['onnxruntime'].median_ms:.2f}",
        f"{times['convopt'].median_ms:.2f}",
        f"{times['onnxruntime'].median_ms / times['convopt'].median_ms:.2f}",
        f"{error:.1e}",
        f"{placed['convs_compiled']} of {placed['convs']}",
        "; ".join(fallback_counts(placed)) or "none",
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of both engines")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing for each engine and model")
    arguments = parser.parse_args(argv)
    print_line(f"convopt {convopt.__version__} on {host_cpu().name}, {arguments.threads} threads, fp32")
    try:
        rows = [demonstrate(name, arguments.threads, arguments.seconds) for name in DEMO_MODELS]
    except ConvoptError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print_table("median of calls in turn; ratio is onnxruntime's time / convopt's", COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
