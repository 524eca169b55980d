"""Notes: read as they are, changed only where they must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.memory import notes
from everlog.memory.notes import Note, compose, edit
from everlog.ports.memory import Source

HAND = """---
# my own comment
name: Deploys
x-owner:  someone   # keeps its spaces
tags:
  - a
  - b
description: How we deploy
type: project
---

Deploys go out on Tuesdays.

Never on Fridays.
"""

LINE = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp", "Zs")), min_size=1)


def test_a_note_tells_what_its_front_matter_says() -> None:
    note = compose(
        name="Prefers tabs",
        description="The user prefers tabs.",
        body="The user prefers tabs.",
        type="user",
        category="preference",
        confidence=0.8,
        source=[Source("01J", 12)],
        created="2026-04-03",
        updated="2026-04-04",
    )
    assert note.text == (
        "---\nname: Prefers tabs\ndescription: The user prefers tabs.\ntype: user\n"
        "category: preference\nconfidence: 0.8\nsource: {session: 01J, seq: 12}\n"
        "created: 2026-04-03\nupdated: 2026-04-04\n---\n\nThe user prefers tabs.\n"
    )
    assert (note.name, note.type, note.category) == ("Prefers tabs", "user", "preference")
    assert (note.confidence, note.sources) == (0.8, (Source("01J", 12),))
    assert (note.created, note.updated, note.body) == ("2026-04-03", "2026-04-04", note.description)


def test_a_file_without_front_matter_is_a_note_too() -> None:
    note = Note("# Cats\n\nI like cats.\n")
    assert (note.name, note.description, note.body) == ("Cats", "Cats", "# Cats\n\nI like cats.")
    assert (note.type, note.category, note.sources, note.confidence) == (None, None, (), 1.0)


@pytest.mark.parametrize("text", ["", "---", "---\n", "---\nname: x\n", "\n---\nname: x\n---\n"])
def test_a_rule_of_dashes_alone_is_no_front_matter(text: str) -> None:
    assert Note(text).fields == {}
    assert Note(text).text == text


def test_changing_one_key_leaves_every_other_byte() -> None:
    changed = edit(Note(HAND), description="How and when we deploy")
    assert changed.text == HAND.replace("description: How we deploy", "description: How and when we deploy")


def test_a_value_that_stays_keeps_the_hand_it_was_written_in() -> None:
    text = HAND.replace("name: Deploys", "name:    'Deploys'")
    assert edit(Note(text), name="Deploys", type="project").text == text


def test_a_key_with_lines_below_it_is_replaced_with_them() -> None:
    changed = edit(Note(HAND), tags="c")
    assert changed.text == HAND.replace("tags:\n  - a\n  - b\n", "tags: c\n")


def test_a_key_that_is_taken_away_takes_its_line_along() -> None:
    assert edit(Note(HAND), type=None).text == HAND.replace("type: project\n", "")


def test_a_body_is_changed_without_touching_the_front_matter() -> None:
    changed = edit(Note(HAND), body="Deploys go out daily.")
    head = HAND.partition("\n\n")[0]
    assert changed.text == f"{head}\n\nDeploys go out daily.\n"


def test_a_note_without_front_matter_gets_some_when_it_is_given_a_key() -> None:
    changed = edit(Note("I like cats.\n"), name="Cats")
    assert changed.text == "---\nname: Cats\n---\n\nI like cats.\n"


def test_windows_line_ends_stay() -> None:
    text = "---\r\nname: a\r\nother: b\r\n---\r\n\r\nbody\r\n"
    assert edit(Note(text), name="c").text == text.replace("name: a", "name: c")


@pytest.mark.parametrize(
    "written",
    [
        "source: {session: A1, seq: 7}",
        'source: {"session": "A1", "seq": 7}',
        "source:\n  session: A1\n  seq: 7",
        "source: [{session: A1, seq: 7}]",
    ],
)
def test_a_source_is_read_in_every_way_people_write_one(written: str) -> None:
    assert Note(f"---\n{written}\n---\n\nx").sources == (Source("A1", 7),)


@pytest.mark.parametrize(("written", "read"), [("0.4", 0.4), ("7", 1.0), ("-1", 0.0), ("high", 1.0), ("nan", 1.0)])
def test_confidence_is_between_nothing_and_one(written: str, read: float) -> None:
    assert Note(f"---\nconfidence: {written}\n---\n").confidence == read


def test_unknown_types_and_categories_are_none_and_stay() -> None:
    note = Note("---\ntype: odd\ncategory: odder\n---\nx")
    assert note.type is None and note.category is None
    assert edit(note, name="n").fields["type"] == "odd"


def test_what_held_once_is_told_apart_from_what_holds() -> None:
    body = f"{notes.strike_out('It was red.', '2026-04-03')}\n\nIt is blue."
    note = Note(body)
    assert note.fact == "It is blue."
    assert note.former_facts == (("It was red.", "2026-04-03"),)


@given(st.text())
def test_any_text_is_a_note_and_reads_back_as_itself(text: str) -> None:
    note = Note(text)
    assert note.text == text
    assert edit(note).text == text
    _ = (note.name, note.description, note.fact, note.confidence, note.sources, note.former_facts)


@given(LINE, LINE, st.text(), st.floats(0, 1))
def test_what_is_composed_is_read_again(name: str, about: str, body: str, sure: float) -> None:
    note = compose(name=name, description=about, body=body, confidence=sure)
    again = Note(note.text)
    assert (again.name, again.description) == (name, about)
    assert again.body == body.strip()
    assert abs(again.confidence - sure) <= 0.005


@given(st.text(), LINE, LINE)
def test_an_edited_key_reads_as_it_was_given_and_editing_twice_is_editing_once(
    text: str, name: str, other: str
) -> None:
    once = edit(Note(text), name=name)
    assert once.fields["name"] == name
    assert edit(once, name=name) == once
    assert edit(edit(once, name=other), name=name).fields == once.fields


def test_equal_texts_are_equal_notes() -> None:
    assert Note("a") == Note("a") and len({Note("a"), Note("a"), Note("b")}) == 2
