"""Bars over time as SVG: numbers in, a picture out that a screen reader can read too.

A picture is stretched to the width that it has, so there is no text in it: scale and days stand
around it as HTML. Colours are the style sheet's, by class; there is no inline style and no script.
The numbers are in a table below, folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

_HEIGHT = 100.0  # units of a picture; its width is as many units as it has bars
_LEAST = 0.8  # units of a bar that can be seen
_GAP = 0.18  # of a bar's width


class Series(NamedTuple):
    """A part of each bar."""

    name: str  # as it is called
    kind: str  # class in the style sheet
    values: Sequence[float]


class Chart(NamedTuple):
    """What is drawn: a bar for each label, its parts on top of each other, the first lowest."""

    id: str  # for the page; letters only
    title: str
    unit: str  # what a label is: Day
    labels: Sequence[str]
    series: Sequence[Series]
    shown: Callable[[float], str]  # a value as people read it


def figure(chart: Chart) -> str:
    """A chart with its scale, its legend and its table."""
    top = ceiling(max(_sums(chart), default=0.0))
    scale = "".join(f"<span>{escape(chart.shown(one))}</span>" for one in (top, top / 2, 0))
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}</figcaption><div class="plot">'
        f'<span class="scale" aria-hidden="true">{scale}</span>{svg(chart)}</div>'
        f"{_axis(chart.labels)}{_legend(chart)}{_table(chart)}</figure>"
    )


def svg(chart: Chart) -> str:
    """The picture alone."""
    top = ceiling(max(_sums(chart), default=0.0))
    width = max(len(chart.labels), 1)
    bars = "".join(_bar(chart, place, top) for place in range(len(chart.labels)))
    name = f"chart-{escape(chart.id)}"
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{name}-title" aria-describedby="{name}-text" focusable="false">'
        f'<title id="{name}-title">{escape(chart.title)}</title>'
        f'<desc id="{name}-text">{escape(_description(chart))}</desc>'
        f'<path class="grid" d="M0 0H{width}M0 {_HEIGHT / 2:g}H{width}M0 {_HEIGHT:g}H{width}"/>'
        f"{bars}</svg>"
    )


def ceiling(largest: float) -> float:
    """The end of a scale: one digit and zeros, at least as large, with a half that is as plain."""
    if largest < 1e-9:  # nothing, or what nobody can read
        return 1.0
    power = 10.0 ** floor(log10(largest))
    # A sum of fractions may come out a hair above the number that it is.
    return next(
        (step * power for step in (1, 2, 3, 4, 5, 6, 8) if step * power >= largest * (1 - 1e-9)),
        10 * power,
    )


def _sums(chart: Chart) -> list[float]:
    return [sum(one.values[place] for one in chart.series) for place in range(len(chart.labels))]


def _bar(chart: Chart, place: int, top: float) -> str:
    total = sum(one.values[place] for one in chart.series)
    if total <= 0:
        return ""
    rects = []
    bottom = _HEIGHT
    for one in chart.series:
        if one.values[place] > 0:
            height = max(one.values[place] / top * _HEIGHT, _LEAST)
            bottom = max(bottom - height, 0.0)
            rects.append(
                f'<rect class="{escape(one.kind)}" x="{place + _GAP / 2:.2f}" y="{bottom:.2f}" '
                f'width="{1 - _GAP:.2f}" height="{height:.2f}"/>'
            )
    told = f"{chart.labels[place]}: {chart.shown(total)}"
    return f"<g><title>{escape(told)}</title>{''.join(rects)}</g>"


def _description(chart: Chart) -> str:
    """What the picture says, in words."""
    sums = _sums(chart)
    if not any(sums):
        return "Nothing."
    most = max(range(len(sums)), key=sums.__getitem__)
    text = f"{chart.shown(sum(sums))} from {chart.labels[0]} to {chart.labels[-1]}"
    if len(sums) == 1:
        text = f"{chart.shown(sums[0])}, {chart.labels[0]}"
    return f"{text}; the most, {chart.shown(sums[most])}, {chart.labels[most]}."


def _axis(labels: Sequence[str]) -> str:
    """The first label, the middle one where there is room for it, and the last one."""
    if not labels:
        return ""
    last = len(labels) - 1
    shown = [labels[place] for place in sorted({0, last // 2 if last > 3 else 0, last})]
    spans = "".join(f"<span>{escape(one)}</span>" for one in shown)
    return f'<div class="axis" aria-hidden="true">{spans}</div>'


def _legend(chart: Chart) -> str:
    keys = "".join(
        f'<li><span class="key {escape(one.kind)}" aria-hidden="true"></span> {escape(one.name)} '
        f"<b>{escape(chart.shown(sum(one.values)))}</b></li>"
        for one in chart.series
        if any(one.values)
    )
    return f'<ul class="legend">{keys}</ul>' if keys else ""


def _table(chart: Chart) -> str:
    shown = [one for one in chart.series if any(one.values)]
    heads = "".join(f'<th scope="col" class="number">{escape(one.name)}</th>' for one in shown)
    rows = []
    for place, label in enumerate(chart.labels):
        cells = "".join(
            f'<td class="number">{escape(chart.shown(one.values[place]))}</td>' for one in shown
        )
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>')
    return (
        f"<details><summary>The numbers: {escape(chart.title)}</summary>"
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(chart.title)}"><table><thead><tr>'
        f'<th scope="col">{escape(chart.unit)}</th>{heads}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )
