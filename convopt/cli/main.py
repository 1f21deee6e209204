"""The entry of the command line: parses, runs one command, prints its document."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from convopt import __version__
from convopt.cli.command import Command, Document
from convopt.errors import ConvoptError

# Each command's line in the list of all. Its module is imported only when it is the one called: all sixteen
# together take 0.15 s, half of what help may take.
COMMANDS = {
    "optimize": "make a compiled artifact, or a better ONNX file",
    "run": "call an artifact or a model",
    "analyze": "what each convolution costs and what bounds it",
    "explain": "what each pass did to each convolution, and every refusal",
    "codegen": "a model's GPU kernels as sources and binaries, with a table of what each takes",
    "tune": "measure schedules within a budget, and remember the best",
    "worker": "offer this machine for measuring, or run the tracker",
    "cache": "what tuning remembers: list, export, import, merge, prune, verify",
    "choices": "measure how good the untuned choices are",
    "calibrate": "measure this machine's peak, bandwidth and launch cost",
    "kernels": "kernels compiled once, for sizes that come at run time",
    "targets": "the devices that convopt knows",
    "build": "compile an artifact's HIP source on the machine that runs it",
    "doctor": "what is installed, found and usable for each target, and what is missing",
    "selftest": "probe a device, check every kernel family on it, time the contest's cases",
    "bench": "time convopt beside other engines",
}

EXIT_STATUS = (
    "exit status: 0 done, 1 (selftest, cache verify) a check failed, 2 a wrong argument, model or input (one"
    " line on stderr says what), 3 the target's device, or its driver or compiler, is missing here, 70"
    " a fault of convopt itself, 130 interrupted; no file is left half-written"
)
INTERNAL_FAULT = 70  # EX_SOFTWARE of BSD's sysexits.h
INTERRUPTED = 130  # as shells give it: 128 + SIGINT
TRACEBACK = "CONVOPT_TRACEBACK"


class _Parser(argparse.ArgumentParser):
    """argparse's, but with the one line on stderr that every other wrong input gives too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def load(name: str) -> Command:
    """The command of that name."""
    command: Command = import_module(f"convopt.cli.{name}").COMMAND
    return command


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """chosen: the command whose arguments it takes; the others are only listed."""
    parser = _Parser(
        prog="convopt",
        description="A model full of convolutions in; a compiled module or a better ONNX file out.",
        epilog=EXIT_STATUS,
    )
    parser.add_argument("--version", action="version", version=f"convopt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        sub = commands.add_parser(name, help=line, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            _fill(sub, load(name))
    return parser


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    fields = "\n".join(f"  {name}: {meaning}" for name, meaning in command.fields.items())
    parser.description = command.description
    parser.epilog = f"fields of --json:\n  command: {command.name}\n{fields}\n\n{EXIT_STATUS}"
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout, nothing else")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(chosen=command)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status (argparse exits by itself, with 2, on wrong usage)."""
    argv = sys.argv[1:] if argv is None else argv
    # No option in front of the command takes a value: the first word is the command.
    arguments = build_parser(next((word for word in argv if not word.startswith("-")), None)).parse_args(argv)
    command: Command = arguments.chosen
    from convopt.report.progress import Progress

    try:
        with Progress(shown=not (arguments.quiet or arguments.json)) as progress:
            document = command.run(arguments, progress)
        _print(command, document, arguments)
        if command.serve is not None:
            command.serve(document)
        return command.status(document)
    except (ConvoptError, OSError, MemoryError) as error:
        print(f"convopt: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, ConvoptError) else 2
    except KeyboardInterrupt:
        print("convopt: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # whatever was not foreseen
        print(_fault(error), file=sys.stderr)
        return INTERNAL_FAULT


def _print(command: Command, document: Document, arguments: argparse.Namespace) -> None:
    try:
        if arguments.json:
            json.dump(document, sys.stdout, indent=2, allow_nan=False)
            sys.stdout.write("\n")
        elif not arguments.quiet:
            command.show(document)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error, and nothing may be written any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(error: Exception) -> str:
    """One line that says where it happened and what to report; the traceback where it is asked for."""
    if os.environ.get(TRACEBACK):
        return "".join(traceback.format_exception(error)).rstrip("\n")
    last = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error).split()) or "no message"
    return (
        f"convopt: fault of convopt {__version__}, not of the input: {type(error).__name__}: {words[:500]}"
        f" ({Path(last.filename).name}:{last.lineno}); please report this line with the command and the model"
        f" ({TRACEBACK}=1 shows the traceback)"
    )
