"""Tables for the terminal, through rich, which is imported only when something is printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """`number` right-aligns and never breaks; texts break over lines where a table is too wide."""

    title: str
    number: bool = False


def print_table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """One table on stdout; nothing at all without rows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.number else "left",
            no_wrap=column.number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if table.rows:
        console().print(table)


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
