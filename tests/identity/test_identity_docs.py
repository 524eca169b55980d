"""docs/identity.md: its worked examples are what routing makes of them, and its code runs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from everlog.identity.route import Router, Routing
from everlog.settings import convert
from tests.identity.route_lines import ask

PAGE = (Path(__file__).parents[2] / "docs" / "identity.md").read_text(encoding="utf-8")
ROWS = [
    row.split(" | ")
    for row in re.findall(r"^\| (.*) \|$", PAGE.partition("## Worked examples")[2], re.MULTILINE)
    if row.count(" | ") == 4 and "`" in row.split(" | ")[2]
]


def examples() -> list[tuple[str, dict[str, Any], list[str], list[str], list[str]]]:
    found: list[tuple[str, dict[str, Any], list[str], list[str], list[str]]] = []
    context: dict[str, Any] = {}
    for name, given, *cells in ROWS:
        context = context if given == "the same" else json.loads(given.strip("`"))
        dimensions, values, aliases = (re.findall(r"`([^`]*)`", cell) for cell in cells)
        found.append((name, context, dimensions, values, aliases))
    return found


@pytest.mark.parametrize(
    ("context", "dimensions", "values", "aliases"), [one[1:] for one in examples()], ids=[one[0] for one in examples()]
)
def test_a_worked_example_is_right(
    context: dict[str, Any], dimensions: list[str], values: list[str], aliases: list[str]
) -> None:
    answer = ask({"context": context, "dimensions": dimensions})
    used = answer["scope"]["dimensions"]
    assert [f"{name}={answer['scope']['values'][name]}" for name in used] == values
    assert answer["aliases"] == ["agent:main:main", *aliases]


def test_every_channel_that_people_ask_for_has_an_example() -> None:
    names = " ".join(one[0] for one in examples())
    for word in ("direct", "group", "forum", "Discord", "Slack", "WhatsApp", "web", "command line"):
        assert word in names


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    codes = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(codes) == 2
    for code in codes:
        exec(compile(code, "identity.md", "exec"), {})


def test_the_configuration_of_the_page_is_good() -> None:
    tables = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert Router(Routing.of(convert(tomllib.loads("\n".join(tables)), {}))).default_agent == "sales"
