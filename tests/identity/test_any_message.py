"""Any message at all: the library and a plain second writing of the rules agree on every byte."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from everlog.errors import SettingsError
from everlog.identity.key_text import normalize
from tests.examples import examples
from tests.identity import naive
from tests.identity.route_lines import ask, lines


def under_two_names(links: dict[str, list[str]]) -> bool:
    """Whether an id stands under two names that are not one."""
    owners: dict[str, set[str]] = {}
    for name, ids in links.items():
        for one in ids:
            if normalize(name) and normalize(one):
                owners.setdefault(normalize(one), set()).add(normalize(name))
    return any(len(names) > 1 for names in owners.values())


@settings(max_examples=examples(400), deadline=None)
@given(lines)
def test_both_writings_of_the_rules_answer_alike(line: dict[str, Any]) -> None:
    if under_two_names(line["identity_links"]):
        try:
            ask(line)
        except SettingsError:
            return
        raise AssertionError("an id under two names went through")
    assert ask(line) == naive.route(line)


@settings(max_examples=examples(100), deadline=None)
@given(lines)
def test_the_same_message_in_capitals_goes_to_the_same_session(line: dict[str, Any]) -> None:
    if under_two_names(line["identity_links"]) or not str(line["context"]).isascii():
        return
    shouted = {field: value.upper() if isinstance(value, str) else value for field, value in line["context"].items()}
    assert ask({**line, "context": shouted}) == ask(line)
