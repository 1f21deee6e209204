"""What `--print-after` and `--dump-dir` hang behind each pass."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from convopt.errors import InputError

if TYPE_CHECKING:
    import onnx_ir as ir

    from convopt.passes.base import Pass, PassReport


def add_instrument_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-after",
        action="append",
        default=[],
        metavar="PASS",
        help="print the model as ONNX text on stderr behind this pass; repeatable, `all` for every pass",
    )
    parser.add_argument(
        "--dump-dir", metavar="DIR", help="write the model behind each pass as DIR/NN-PASS.onnx"
    )


class Instruments:
    """The callback behind each pass; `ran` collects (pass, rewrites made).

    Raises:
        InputError: at once where DIR is a file; from `finish` where a pass to print after never ran.
    """

    def __init__(self, print_after: list[str], dump_dir: str | None) -> None:
        self._wanted = frozenset(print_after)
        self._folder = Path(dump_dir) if dump_dir else None
        self.ran: list[tuple[str, int]] = []
        if self._folder is not None:
            if self._folder.exists() and not self._folder.is_dir():
                raise InputError(f"--dump-dir {dump_dir}: is not a folder")
            self._folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, index: int, one: Pass, model: ir.Model, report: PassReport) -> None:
        del index  # a run consists of several pipelines, each of which counts from 0
        if self._folder is not None:
            from convopt.frontends.onnx_file import save

            save(model, self._folder / f"{len(self.ran):02d}-{one.name}.onnx")
        if one.name in self._wanted or "all" in self._wanted:
            from convopt.ir.printing import model_text

            print(f"// after {one.name}\n{model_text(model)}", file=sys.stderr)
        self.ran.append((one.name, report.changed))

    def finish(self) -> None:
        names = [name for name, _ in self.ran]
        for name in sorted(self._wanted - {"all", *names}):
            raise InputError(f"--print-after {name}: no such pass ran; there were {', '.join(names)}")
