"""Bar charts over time as SVG, accessible to screen readers.

The image is stretched to the available width, so it contains no text: scale and labels are HTML
around it. Colours come from the style sheet, by class; there is no inline style and no script. The
numbers are in a collapsed table below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

_HEIGHT = 100.0  # units of the image; its width is one unit per bar
_MIN_HEIGHT = 0.8  # units, so that a small value remains visible
_GAP = 0.18  # of a bar's width


class Series(NamedTuple):
    """A segment of each bar."""

    name: str  # shown in the legend
    kind: str  # class in the style sheet
    values: Sequence[float]


class Chart(NamedTuple):
    """A chart: one bar per label, with stacked segments, the first series at the bottom."""

    id: str  # unique in the page; letters only
    title: str
    unit: str  # heading of the labels, such as Day
    labels: Sequence[str]
    series: Sequence[Series]
    format_value: Callable[[float], str]  # for people to read


def render_figure(chart: Chart) -> str:
    """Render a chart with its scale, legend and table."""
    top = scale_maximum(max(_totals(chart), default=0.0))
    values = map(chart.format_value, (top, top / 2, 0))
    scale = "".join(f"<span>{escape(value)}</span>" for value in values)
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}</figcaption><div class="plot">'
        f'<span class="scale" aria-hidden="true">{scale}</span>{render_svg(chart)}</div>'
        f"{_render_axis(chart.labels)}{_render_legend(chart)}{_render_table(chart)}</figure>"
    )


def render_svg(chart: Chart) -> str:
    """Render only the image of a chart."""
    top = scale_maximum(max(_totals(chart), default=0.0))
    width = max(len(chart.labels), 1)
    bars = "".join(_render_bar(chart, index, top) for index in range(len(chart.labels)))
    name = f"chart-{escape(chart.id)}"
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{name}-title" aria-describedby="{name}-text" focusable="false">'
        f'<title id="{name}-title">{escape(chart.title)}</title>'
        f'<desc id="{name}-text">{escape(_describe(chart))}</desc>'
        f'<path class="grid" d="M0 0H{width}M0 {_HEIGHT / 2:g}H{width}M0 {_HEIGHT:g}H{width}"/>'
        f"{bars}</svg>"
    )


def scale_maximum(largest: float) -> float:
    """Return the end of a scale: one digit and zeros, at least `largest`, with a round half."""
    if largest < 1e-9:  # zero, or too small to read
        return 1.0
    power = 10.0 ** floor(log10(largest))
    # A sum of floats may be slightly larger than its exact value.
    return next((step * power for step in (1, 2, 3, 4, 5, 6, 8) if step * power >= largest * (1 - 1e-9)), 10 * power)


def _totals(chart: Chart) -> list[float]:
    return [sum(s.values[index] for s in chart.series) for index in range(len(chart.labels))]


def _render_bar(chart: Chart, index: int, top: float) -> str:
    total = sum(series.values[index] for series in chart.series)
    if total <= 0:
        return ""
    rects = []
    bottom = _HEIGHT
    for series in chart.series:
        if series.values[index] > 0:
            height = max(series.values[index] / top * _HEIGHT, _MIN_HEIGHT)
            bottom = max(bottom - height, 0.0)
            rects.append(
                f'<rect class="{escape(series.kind)}" x="{index + _GAP / 2:.2f}" y="{bottom:.2f}" '
                f'width="{1 - _GAP:.2f}" height="{height:.2f}"/>'
            )
    label = f"{chart.labels[index]}: {chart.format_value(total)}"
    return f"<g><title>{escape(label)}</title>{''.join(rects)}</g>"


def _describe(chart: Chart) -> str:
    """Describe the chart in words."""
    totals = _totals(chart)
    if not any(totals):
        return "No data."
    peak = max(range(len(totals)), key=totals.__getitem__)
    text = f"{chart.format_value(sum(totals))} from {chart.labels[0]} to {chart.labels[-1]}"
    if len(totals) == 1:
        text = f"{chart.format_value(totals[0])}, {chart.labels[0]}"
    return f"{text}; highest: {chart.format_value(totals[peak])}, {chart.labels[peak]}."


def _render_axis(labels: Sequence[str]) -> str:
    """Render the first label, the middle one if there is room for it, and the last one."""
    if not labels:
        return ""
    last = len(labels) - 1
    ticks = [labels[index] for index in sorted({0, last // 2 if last > 3 else 0, last})]
    spans = "".join(f"<span>{escape(label)}</span>" for label in ticks)
    return f'<div class="axis" aria-hidden="true">{spans}</div>'


def _render_legend(chart: Chart) -> str:
    keys = "".join(
        f'<li><span class="key {escape(series.kind)}" aria-hidden="true"></span> '
        f"{escape(series.name)} <b>{escape(chart.format_value(sum(series.values)))}</b></li>"
        for series in chart.series
        if any(series.values)
    )
    return f'<ul class="legend">{keys}</ul>' if keys else ""


def _render_table(chart: Chart) -> str:
    shown = [series for series in chart.series if any(series.values)]
    heads = "".join(f'<th scope="col" class="number">{escape(s.name)}</th>' for s in shown)
    rows = []
    for index, label in enumerate(chart.labels):
        values = (chart.format_value(series.values[index]) for series in shown)
        cells = "".join(f'<td class="number">{escape(value)}</td>' for value in values)
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>')
    return (
        f"<details><summary>Data table: {escape(chart.title)}</summary>"
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(chart.title)}"><table><thead><tr>'
        f'<th scope="col">{escape(chart.unit)}</th>{heads}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )
