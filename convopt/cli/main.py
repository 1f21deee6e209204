"""The entry of the command line: parses, runs one command, prints its document."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from convopt import __version__
from convopt.cli import (
    analyze,
    bench,
    build,
    cache,
    calibrate,
    choices,
    codegen,
    doctor,
    explain,
    kernels,
    optimize,
    run,
    selftest,
    targets,
    tune,
    worker,
)
from convopt.cli.command import Command
from convopt.errors import ConvoptError

COMMANDS: tuple[Command, ...] = (
    optimize.COMMAND,
    run.COMMAND,
    analyze.COMMAND,
    explain.COMMAND,
    codegen.COMMAND,
    tune.COMMAND,
    worker.COMMAND,
    cache.COMMAND,
    choices.COMMAND,
    calibrate.COMMAND,
    kernels.COMMAND,
    targets.COMMAND,
    build.COMMAND,
    doctor.COMMAND,
    selftest.COMMAND,
    bench.COMMAND,
)

EXIT_STATUS = (
    "exit status: 0 done, 1 (selftest) a check failed, 2 a wrong argument, model or input (one line on stderr"
    " says what), 3 (doctor --target, selftest, bench --target) the target can't run on this machine"
)


class _Parser(argparse.ArgumentParser):
    """argparse's, but with the one line on stderr that every other wrong input gives too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="convopt",
        description="A model full of convolutions in; a compiled module or a better ONNX file out.",
        epilog=EXIT_STATUS,
    )
    parser.add_argument("--version", action="version", version=f"convopt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        fields = "\n".join(f"  {name}: {meaning}" for name, meaning in command.fields.items())
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=command.description,
            epilog=f"fields of --json:\n  command: {command.name}\n{fields}\n\n{EXIT_STATUS}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.add_argument(
            "--json", action="store_true", help="print one JSON document on stdout, nothing else"
        )
        sub.add_argument("--quiet", action="store_true", help="print nothing but errors")
        sub.set_defaults(chosen=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status (argparse exits by itself, with 2, on wrong usage)."""
    arguments = build_parser().parse_args(argv)
    command: Command = arguments.chosen
    from convopt.report.progress import Progress

    try:
        with Progress(shown=not (arguments.quiet or arguments.json)) as progress:
            document = command.run(arguments, progress)
        if arguments.json:
            json.dump(document, sys.stdout, indent=2, allow_nan=False)
            sys.stdout.write("\n")
        elif not arguments.quiet:
            command.show(document)
        sys.stdout.flush()
        return command.status(document)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error, and nothing may be written any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConvoptError, OSError, MemoryError) as error:
        print(f"convopt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("convopt: interrupted", file=sys.stderr)
        return 130
    return 0
