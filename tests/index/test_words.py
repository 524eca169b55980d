"""Words: what is indexed beside a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.index.search.words import character_pairs, grams, identifiers, split_identifier, split_scripts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It was a bright cold day in April, and the clocks were striking thirteen.",
        "NASA and the APIs of 2023, the 2nd at 5pm; it's 10k.",
        "snake_case, kebab-case and dotted.names are cut by the index itself",
        "Déjà vu, naïve, Über, Привет мир, “quoted” – and 😀",
    ],
)
def test_prose_has_no_grams(text: str) -> None:
    assert grams(text) == ""


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("getUserName", "get user name"),
        ("UserName", "user name"),
        ("HTTPServer", "http server"),
        ("parseJSON", "parse json"),
        ("sha256sum", "sha 256 sum"),
        ("utf8", "utf 8"),
        ("get_userName", "get user name"),
    ],
)
def test_an_identifier_has_its_words_as_grams(name: str, inside: str) -> None:
    assert grams(f"call {name} now") == inside


@pytest.mark.parametrize("name", ["9f3a01bc2d4e", "aB3xY9zQ1w", "größeÄndern", "dGhpcyBpcyBhIGxvbmcgYmFzZTY0" * 4])
def test_hashes_blobs_and_words_of_other_languages_are_not_made_of_words(name: str) -> None:
    assert split_identifier(name) == []


def test_each_identifier_counts_once() -> None:
    assert grams("userName userName userName") == "user name"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我喜欢画", ["我喜", "喜欢", "欢画", "画"]),
        ("画", ["画"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー", "ー"]),
        ("한국어 말", ["한국", "국어", "어", "말"]),
        ("说abc写", ["说", "写"]),
        ("𠀀𠀁", ["𠀀𠀁", "𠀁"]),
    ],
)
def test_scripts_without_spaces_are_indexed_in_pairs(text: str, expected: list[str]) -> None:
    assert grams(text).split() == expected


def test_half_width_and_decomposed_letters_are_indexed_as_the_usual_ones() -> None:
    assert grams("ｶﾞｽ").split() == grams("ガス").split()
    assert grams("한국").split() == grams("한국").split()


def test_vowel_signs_become_letters_of_private_use() -> None:
    found = grams("กินข้าว")
    assert all(character.isalnum() or "\ue000" <= character <= "\uf8ff" for character in found.replace(" ", ""))
    assert len(found.split()) == len("กินข้าว")


def test_identifiers_are_words_made_of_words_each_once() -> None:
    text = "def get_user_name(userId): return cache[userId] or fetch('plain', __all__)"
    assert identifiers(text) == "get_user_name userId"
    assert identifiers("nothing of the kind") == ""


def test_a_word_is_cut_where_the_script_changes() -> None:
    assert split_scripts("iPhone手机壳x") == [("iPhone", False), ("手机壳", True), ("x", False)]
    assert split_scripts("") == []


@given(st.text())
def test_any_text_has_grams_and_identifiers(text: str) -> None:
    assert grams(text) == grams(text).strip()
    assert isinstance(identifiers(text), str)


@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=1))
def test_every_character_of_a_run_begins_a_gram(run: str) -> None:
    assert [gram[0] for gram in character_pairs(run).split()] == list(run)
