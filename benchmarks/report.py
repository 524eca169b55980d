"""What a measurement says, and the table it goes into."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Figure(NamedTuple):
    """One measured ratio or time and what it should be."""

    what: str
    target: str
    measured: str
    reached: bool | None  # None: nothing was promised, or the run is void
    note: str = ""


def table(figures: Sequence[Figure]) -> str:
    """Figures as a Markdown table."""
    rows = ["| what | target | measured | reached |", "| --- | --- | --- | --- |"]
    words = {True: "yes", False: "**no**", None: "–"}
    for one in figures:
        note = f" ({one.note})" if one.note else ""
        rows.append(f"| {one.what} | {one.target} | {one.measured}{note} | {words[one.reached]} |")
    return "\n".join(rows)


def middle(values: Sequence[float]) -> float:
    """The median."""
    return median(values)
