"""Charts: what is drawn, what is said instead, and that nothing in them is obeyed."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.render.charts import Chart, Series, render_figure, render_svg, scale_maximum
from everlog.render.humanize import short_number

HOSTILE = '"><script>alert(1)</script><i onload=x>&'
SVG = "{http://www.w3.org/2000/svg}"


def _chart(*parts: list[float], label: str = "2026-11-") -> Chart:
    names = ("Input", "Output", "Cached")
    kinds = ("input", "output", "cached")
    series = [Series(*one) for one in zip(names, kinds, parts, strict=False)]
    labels = [f"{label}{number:02d}" for number in range(1, len(parts[0]) + 1)]
    return Chart("tokens", "Tokens per day", "Day", labels, series, short_number)


def _parsed(chart: Chart) -> ElementTree.Element:
    named = render_svg(chart).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return ElementTree.fromstring(named)


def test_bars_are_stacked_to_their_sum_and_days_without_anything_are_empty() -> None:
    drawn = _parsed(_chart([10, 0, 30], [10, 0, 10]))
    first, last = drawn.findall(f"{SVG}g")
    heights = [float(one.attrib["height"]) for one in first.findall(f"{SVG}rect")]
    assert heights == [25.0, 25.0]  # of 100, which stand for 40
    low, high = last.findall(f"{SVG}rect")
    assert (float(low.attrib["y"]), float(high.attrib["y"])) == (25.0, 0.0)
    assert low.attrib["class"] == "input" and high.attrib["class"] == "output"


def test_a_picture_is_named_and_described_for_those_who_do_not_see_it() -> None:
    drawn = _parsed(_chart([5, 1000, 7]))
    assert drawn.attrib["role"] == "img"
    told = {one.attrib["id"]: one.text for one in drawn if "id" in one.attrib}
    assert told[drawn.attrib["aria-labelledby"]] == "Tokens per day"
    text = told[drawn.attrib["aria-describedby"]]
    assert text == "1.0k from 2026-11-01 to 2026-11-03; highest: 1.0k, 2026-11-02."


def test_every_number_is_in_the_table() -> None:
    text = render_figure(_chart([1, 22, 333], [4444, 0, 0]))
    for value in ("1", "22", "333", "4.4k"):
        assert f'<td class="number">{value}</td>' in text
    assert text.count('<th scope="row">') == 3 and "Cached" not in text


def test_a_small_bar_beside_a_large_one_is_seen() -> None:
    small, _ = _parsed(_chart([1, 10_000_000])).findall(f"{SVG}g")
    assert float(small.findall(f"{SVG}rect")[0].attrib["height"]) > 0.5


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 400])
def test_any_number_of_bars_can_be_drawn(count: int) -> None:
    chart = _chart([1.0] * count)
    assert len(_parsed(chart).findall(f"{SVG}g")) == count
    assert render_figure(chart).count('class="axis"') == (1 if count else 0)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.keys: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.keys |= {key for key, _ in attrs}


def test_names_are_escaped_and_there_is_neither_script_nor_style() -> None:
    series = [Series(HOSTILE, HOSTILE, [1])]
    chart = Chart(HOSTILE, HOSTILE, HOSTILE, [HOSTILE], series, lambda _: HOSTILE)
    seen = _Tags()
    seen.feed(render_figure(chart))
    assert not seen.tags & {"script", "style", "i"}
    assert not {key for key in seen.keys if key.startswith("on") or key == "style"}


@given(st.floats(0, 1e15))
def test_a_scale_reaches_what_it_is_for_and_not_much_further(largest: float) -> None:
    top = scale_maximum(largest)
    assert top >= largest * 0.999999
    assert largest < 1e-9 or top <= largest * 2.0001
