"""extracted.md: the form is exact, and the rest of the file is somebody else's."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.memory import extracted_file
from everlog.memory.extracted_file import add_facts, parse_lines, remove_lines
from everlog.memory.facts import sanitize_line
from everlog.ports.memory import CATEGORIES, Fact, Source

DAY, NEXT = date(2026, 4, 3), date(2026, 4, 4)
TABS = Fact("preference", "The user prefers tabs", 0.8)
UV = Fact("project", "We use uv", 0.5, Source("01J", 12))
FIRST = """## Auto-extracted memories

### Session memories — 2026-04-03
- **[preference]** The user prefers tabs *(confidence: 80%)*
"""


def test_a_new_file_has_the_section_the_day_and_the_line() -> None:
    assert add_facts("", [TABS], DAY) == FIRST


def test_the_source_stands_in_a_comment_at_the_end_of_the_line() -> None:
    assert extracted_file.format_line(UV) == (
        "- **[project]** We use uv *(confidence: 50%)* <!-- session:01J seq:12 -->"
    )


def test_the_same_day_gets_new_lines_directly_below_its_heading() -> None:
    assert add_facts(FIRST, [UV], DAY) == FIRST.replace(
        "- **[preference]**", f"{extracted_file.format_line(UV)}\n- **[preference]**"
    )


def test_a_new_day_goes_directly_below_the_heading_of_the_section() -> None:
    assert add_facts(FIRST, [UV], NEXT) == (
        "## Auto-extracted memories\n\n"
        f"### Session memories — 2026-04-04\n{extracted_file.format_line(UV)}\n\n"
        "### Session memories — 2026-04-03\n"
        "- **[preference]** The user prefers tabs *(confidence: 80%)*\n"
    )


def test_what_a_person_wrote_around_the_section_stays() -> None:
    text = f"# Mine\n\nwords\n\n{FIRST}\n## Other\n\n### Session memories — 2026-04-03\nmine\n"
    new = add_facts(text, [UV], DAY)
    assert new == text.replace("- **[pref", f"{extracted_file.format_line(UV)}\n- **[pref", 1)
    assert add_facts("# Mine\nwords", [TABS], DAY) == f"# Mine\nwords\n\n{FIRST}"


def test_a_heading_that_is_quoted_in_a_fact_is_not_hit() -> None:
    quoted = Fact("pattern", "Blocks begin with ### Session memories — 2026-04-03", 0.9)
    section = Fact("pattern", "Its heading is ## Auto-extracted memories", 0.9)
    text = add_facts(add_facts("", [quoted, section], DAY), [UV], DAY)
    assert text.count(extracted_file.format_line(UV)) == 1
    assert [one.fact.text for one in parse_lines(text)] == [UV.text, quoted.text, section.text]


def test_headings_in_a_code_block_are_text() -> None:
    text = f"```\n{FIRST}```\n"
    new = add_facts(text, [UV], DAY)
    assert new.startswith(text) and [one.fact for one in parse_lines(new)] == [UV]


def test_a_code_block_that_is_never_closed_hides_nothing() -> None:
    text = add_facts("```\n" + FIRST, [UV], DAY)
    assert text.count("## Auto") == 1 and len(parse_lines(text)) == 2


def test_windows_line_ends_stay() -> None:
    text = add_facts(FIRST.replace("\n", "\r\n"), [UV], DAY)
    assert text.count("\n") == text.count("\r\n") == 5
    assert len(parse_lines(text)) == 2


@pytest.mark.parametrize(
    ("confidence", "shown"), [(0.0, 0), (0.005, 1), (0.333, 33), (0.125, 13), (0.996, 100), (2, 100)]
)
def test_percent_is_rounded(confidence: float, shown: int) -> None:
    assert extracted_file.percent(confidence) == shown


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_is_written_by_its_label_and_read_again(category: str) -> None:
    fact = Fact(category, "Something holds", 0.4, Source("S", 1))  # type: ignore[arg-type]
    text = add_facts("", [fact], DAY)
    assert f"- **[{category}]** Something holds *(confidence: 40%)*" in text
    assert [(one.day, one.fact) for one in parse_lines(text)] == [(DAY, fact)]


def test_a_line_that_a_person_wrote_needs_no_confidence() -> None:
    text = FIRST + "- **[decision]** We go with uv\n- just a line\n"
    assert [one.fact for one in parse_lines(text)][1:] == [Fact("decision", "We go with uv", 1.0)]


FACTS = st.builds(
    Fact,
    st.sampled_from(CATEGORIES),
    st.text(min_size=1).map(sanitize_line).filter(bool),
    st.integers(0, 100).map(lambda n: n / 100),
    st.none() | st.builds(Source, st.from_regex(r"[A-Z0-9]{4}", fullmatch=True), st.integers(0, 9999)),
)


@given(st.text(), st.lists(FACTS, min_size=1, max_size=5), st.lists(FACTS, min_size=1, max_size=3))
def test_any_facts_are_read_as_they_were_added_to_any_file(text: str, first: list[Fact], second: list[Fact]) -> None:
    assert parse_lines(text) == []
    new = add_facts(add_facts(text, first, DAY), second, DAY)
    assert [(one.day, one.fact) for one in parse_lines(new)] == [(DAY, fact) for fact in second + first]


def test_lines_are_taken_out_with_the_days_that_are_empty_then() -> None:
    text = add_facts(add_facts("mine\n", [TABS], DAY), [UV, TABS], NEXT)
    lines = parse_lines(text)
    assert remove_lines(text, {lines[0].number}) == add_facts(add_facts("mine\n", [TABS], DAY), [TABS], NEXT)
    assert remove_lines(text, {lines[0].number, lines[1].number}) == add_facts("mine\n", [TABS], DAY)
    empty = remove_lines(text, {one.number for one in lines})
    assert empty == "mine\n\n## Auto-extracted memories\n"
    assert add_facts(empty, [TABS], DAY) == add_facts("mine\n", [TABS], DAY)
    assert remove_lines(text, set()) == text


def test_taking_lines_out_leaves_what_a_person_wrote_in_their_day() -> None:
    text = FIRST + "my own remark\n\n## Other\nx\n"
    left = remove_lines(text, {parse_lines(text)[0].number})
    assert left == text.replace("- **[preference]** The user prefers tabs *(confidence: 80%)*\n", "")


@pytest.mark.parametrize(
    "text", ["", "mine", "mine\n", "## Auto-extracted memories", "### Session memories — 2026-04-03\n\n"]
)
def test_nothing_to_remove_changes_nothing(text: str) -> None:
    assert remove_lines(text, set()) == text
