"""Tables for the terminal, through rich, which is imported only when something is printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FOLDED = 24  # characters: a text column is not made narrower than this to fit a terminal
GAP = 2  # spaces between columns


@dataclass(frozen=True)
class Column:
    """`number` right-aligns and never breaks; texts break over lines where they are too wide."""

    title: str
    number: bool = False


def print_table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """One table on stdout; nothing at all without rows.

    What is too wide for the terminal continues below, its first column repeated: no number is ever cut.
    """
    rows = list(rows)
    if not rows:
        return
    out = console()
    for part, chosen in enumerate(_parts(columns, rows, out.width)):
        _print_part(
            out, "" if part else title, [columns[i] for i in chosen], [[r[i] for i in chosen] for r in rows]
        )


def _parts(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """The columns of each table: all of them, or as many as fit, each time behind the first."""
    needed = [
        GAP + max(_longest_line(column, row[i]) for row in [[c.title for c in columns], *rows])
        for i, column in enumerate(columns)
    ]
    parts = [[0]]
    for i in range(1, len(columns)):
        if len(parts[-1]) > 1 and sum(needed[j] for j in (*parts[-1], i)) > width:
            parts.append([0])
        parts[-1].append(i)
    return parts


def _longest_line(column: Column, cell: str) -> int:
    """What the cell needs of a line: a number all of it, a text as much as it may fold to."""
    return len(cell) if column.number else min(len(cell), FOLDED)


def _print_part(out: Any, title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        table.add_column(
            Text(column.title),
            justify="right" if column.number else "left",
            no_wrap=column.number,
            overflow="fold",
            min_width=None if column.number else min(FOLDED, max(len(column.title), 1)),
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def print_line(text: str = "") -> None:
    """One line of plain text on stdout; rich's markup in it means nothing."""
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def console() -> Any:
    """Where tables go. A pipe has no width: 160 columns keep a table's row on one line of a log."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=160)


def number(value: float | None, digits: int = 2) -> str:
    """The number with that many decimals, an empty cell for None."""
    return "" if value is None else f"{value:.{digits}f}"


def scaled(value: float | None) -> str:
    """A count with a decimal prefix: 1.23 G, 45.6 M, 789."""
    if value is None:
        return ""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {prefix}"
    return f"{value:.3g}"
