"""`make docs`: write what is made from the code."""

from __future__ import annotations

from pathlib import Path

from tests.reference import api, commands, http

DOCS = Path(__file__).parents[2] / "docs"


def made() -> dict[Path, str]:
    """Every page that is made, or made in part, as it should be."""
    cli = DOCS / "cli.md"
    return {
        DOCS / "api.md": api.page(),
        DOCS / "http.md": http.page(),
        cli: commands.within(cli.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for page, text in made().items():
        page.write_text(text, encoding="utf-8")
