"""The string rules, on every code point."""

from __future__ import annotations

from hashlib import sha256

import pytest

from everlog.identity.key_text import account_id, agent_id, lower, normalize, trim
from tests.identity import naive

CODE_POINTS = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def test_white_space_is_exactly_what_unicode_says() -> None:
    assert [code for code in CODE_POINTS if not trim(chr(code))] == sorted(naive.WHITE)
    assert trim("\u3000\x85 a b\x1c\t\n") == "a b\x1c"
    assert trim("\u200b\ufeff") == "\u200b\ufeff"  # wide by name only


def test_lower_case_maps_each_code_point_to_one_and_never_changes() -> None:
    """The digest is of Unicode 15: a Python with a later one must give the same keys."""
    table = [lower(chr(code)) for code in CODE_POINTS]
    assert all(len(one) == 1 for one in table)
    digest = sha256("".join(table).encode()).hexdigest()
    assert digest == "137590953b837f1ec8b7c02b3a0425d0789df789a59ad256e7a63416f9fc4c11"


def test_lower_case_looks_at_no_neighbour() -> None:
    assert lower("ΟΔΟΣ ΣΣ") == "οδοσ σσ"
    assert lower("İI") == "ii"
    assert lower("\u212aẞ") == "kß"
    text = "".join(map(chr, CODE_POINTS))
    assert lower(text) == "".join(map(lower, text)) == lower(lower(text))


def test_lower_and_trim_may_be_done_in_either_order() -> None:
    for code in CODE_POINTS:
        text = f" {chr(code)} "
        assert normalize(text) == trim(lower(text))


@pytest.mark.parametrize(
    ("given", "agent"),
    [
        ("", "main"),
        (" \u2003", "main"),
        ("Main", "main"),
        ("Sales Team", "sales-team"),
        ("  a..b  ", "a-b"),
        ("--both--", "both"),
        ("_x_", "_x_"),
        ("@@@", "main"),
        ("日本", "main"),
        ("x" * 64, "x" * 64),
        ("x" * 70, "x" * 64),
        ("X" * 63 + " yyyyyy", "x" * 63 + "-"),
        ("-" * 6 + "x" * 64, "x" * 64),
        ("İstanbul", "istanbul"),
        ("a\n", "a"),
        ("a\nb", "a-b"),
    ],
)
def test_an_agent_name_becomes_an_id(given: str, agent: str) -> None:
    assert agent_id(given) == agent
    assert account_id(given) == ("default" if agent == "main" and given != "Main" else agent)
