"""The list of JSON fields in docs/ is the commands' own."""

from pathlib import Path

import pytest

from convopt.cli.main import COMMANDS, load

DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"
BEGIN, END = "<!-- fields: begin", "<!-- fields: end -->"


def expected_text() -> str:
    """A folded list for each command."""
    parts = []
    for command in map(load, COMMANDS):
        fields = "\n".join(f"- `{path}`: {meaning}" for path, meaning in command.fields.items())
        summary = f"<summary><code>convopt {command.name} --json</code></summary>"
        parts.append(f"<details>{summary}\n\n{fields}\n\n</details>")
    return "\n".join(parts)


def test_the_document_lists_the_fields(request: pytest.FixtureRequest) -> None:
    """`pytest --update-golden` rewrites the list."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = text.index("\n", text.index(BEGIN)) + 1, text.index(END)
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(f"{text[:begin]}{expected_text()}\n{text[end:]}", encoding="utf-8")
        return
    assert text[begin:end].rstrip("\n") == expected_text()
