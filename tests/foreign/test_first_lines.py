"""No first line makes a session invisible: neither a huge one nor one that is lost, torn, blank or NUL."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import everlog
from everlog.app import load_formats, open_store
from everlog.interop.importer import import_files
from tests.foreign.foreign_directories import made
from tests.formats.conversations import CONVERSATIONS

TEXTS = ["hello", "hi there", "how are you", "fine"]
WRITABLE = ("claude", "cersei", "crabtalk", "picoclaw", "pi")
Damage = Callable[[bytes], bytes]


def _replace_first(replacement: Callable[[bytes], bytes]) -> Damage:
    def damage(data: bytes) -> bytes:
        first, _, rest = data.partition(b"\n")
        return replacement(first) + rest

    return damage


DAMAGES: dict[str, Damage] = {
    "lost": _replace_first(lambda first: b""),
    "torn": _replace_first(lambda first: first[: len(first) // 2] + b"\n"),
    "one byte": _replace_first(lambda first: b"x\n"),
    "NUL": _replace_first(lambda first: b"\0" * len(first) + b"\n"),
    "blank before it": _replace_first(lambda first: b"\n" + first + b"\n"),
    "an odd line before it": _replace_first(lambda first: b'{"role":"user","content":["x"]}\n' + first + b"\n"),
    "nothing but NULs before it": _replace_first(lambda first: b"\0\0\0\n" + first + b"\n"),
}


def _texts(messages: Sequence[everlog.Message]) -> list[str]:
    return [message.text for message in messages if message.text not in ("", "x")]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("format", sorted(CONVERSATIONS))
def test_a_damaged_first_line_hides_no_other_line(tmp_path: Path, format: str, damage: str) -> None:
    files = CONVERSATIONS[format](TEXTS)
    name = next(iter(files))
    root = made(tmp_path / "root", {**files, name: DAMAGES[damage](files[name])})
    with open_store(f"{format}:{root}", home=tmp_path / "home") as store:
        (row,) = store.list()
        shown = _texts(store.session(row.id).messages())
        assert shown in (TEXTS, TEXTS[1:])  # at most what the line itself said is missing
        with everlog.open_store("memory:") as native:
            (result,) = import_files(native.port, [root / name], load_formats())
            assert not result.problem and result.format == format
            assert _texts(native.session(result.id or "").messages()) == shown
        if format in WRITABLE:
            store.session(row.id).append("and now")
            assert _texts(store.session(row.id).messages()) == [*shown, "and now"]


@pytest.mark.parametrize("size", [1, 65_000, 70_000, 5_000_000])
@pytest.mark.parametrize("format", sorted(CONVERSATIONS))
def test_a_first_line_of_any_length_is_read(tmp_path: Path, format: str, size: int) -> None:
    files = CONVERSATIONS[format](TEXTS)
    name = next(iter(files))
    first, _, rest = files[name].partition(b"\n")
    head = json.loads(first)
    head["future"] = "x" * size
    root = made(tmp_path / "root", {**files, name: json.dumps(head).encode() + b"\n" + rest})
    with open_store(root, home=tmp_path / "home") as store:
        (row,) = store.list()
        assert row.metadata.source == format
        assert _texts(store.session(row.id).messages()) == TEXTS
        with everlog.open_store("memory:") as native:
            (result,) = import_files(native.port, [root / name], load_formats())
            assert (result.format, result.lost) == (format, 0)
            assert _texts(native.session(result.id or "").messages()) == TEXTS
        if format in WRITABLE:
            store.session(row.id).append("and now")
            assert _texts(store.session(row.id).messages()) == [*TEXTS, "and now"]


@pytest.mark.parametrize("format", sorted(CONVERSATIONS))
def test_two_conversations_under_one_file_name_are_two_sessions_in_place(tmp_path: Path, format: str) -> None:
    one, other = CONVERSATIONS[format](TEXTS), CONVERSATIONS[format](["hello", "no"])
    files = {f"a/{name}": data for name, data in one.items()} | {f"b/{name}": data for name, data in other.items()}
    root = made(tmp_path / "root", files)
    with open_store(f"{format}:{root}", home=tmp_path / "home") as store:
        rows = list(store.list())
        assert sorted(_texts(store.session(row.id).messages()) for row in rows) == [
            ["hello", "hi there", *TEXTS[2:]],
            ["hello", "no"],
        ]
        if format in WRITABLE:
            for row in rows:
                store.session(row.id).append(f"to {row.id}")
            for row in rows:
                assert store.session(row.id).messages()[-1].text == f"to {row.id}"
