"""Tables at the widths that terminals have: no number cut, no column lost."""

from __future__ import annotations

import pytest
from rich.console import Console

from convopt.report import tables
from convopt.report.tables import Column, print_table

COLUMNS = [Column("case"), *(Column(f"engine {i}", True) for i in range(8)), Column("schedule")]
ROWS = [
    ["a/rather/long/name/of/a/model.onnx", *(f"{i}.068 ({i}.060)" for i in range(8)), "direct"],
    ["small", *(f"{i}.168 ({i}.160)" for i in range(8)), "winograd"],
]


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(tables, "console", lambda: Console(width=width))
    print_table("times", COLUMNS, ROWS)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_every_cell_is_readable_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for column in COLUMNS[1:]:
        assert text.count(column.title) == 1
    for cell in (*ROWS[0][1:], *ROWS[1][1:]):
        assert cell in text
    heads = [line for line in lines if line.split()[:1] == ["case"]]
    assert text.count("small") == len(heads)  # each part names its rows
    assert (len(heads) > 1) == (width < 160)
    assert lines[0].strip() == "times"


def test_a_table_without_rows_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("times", COLUMNS, [])
    assert capsys.readouterr().out == ""


def test_names_are_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of files, nodes and engines: brackets are part of them."""
    monkeypatch.setattr(tables, "console", lambda: Console(width=80))
    print_table("m [x][/red].onnx", [Column("[bold]case"), Column("[/]", True)], [["[red]a", "[1]"]])
    tables.print_line("[/blue]")
    shown = capsys.readouterr().out
    assert all(
        text in shown for text in ("m [x][/red].onnx", "[bold]case", "[/]", "[red]a", "[1]", "[/blue]")
    )
