"""Round trips through records of ours, and damage that every dialect must bear."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ExportedFiles, ForeignSession, InMemorySource, Summary
from everlog.interop.formats.jsonl import parse_object
from everlog.log.fold import View, apply_changes, fold
from everlog.log.line_codec import build_line, decode, encode
from everlog.model import AnyRecord, Message, Metadata, Text, Thinking, ToolCall, assistant, tool_result, user
from tests.formats.native import through_native

GOLDEN = Path(__file__).parent / "golden"
ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def golden(dialect: str, name: str, modified: int = 1_780_000_000_000) -> InMemorySource:
    """A session of the golden files with everything that lies beside it."""
    folder = GOLDEN / dialect
    paths = [folder / f"{name}.jsonl", *sorted(folder.glob(f"{name}_part*"))]
    paths += [one for one in (folder / f"{name}.meta.json",) if one.exists()]
    return InMemorySource(name, {path.name: path.read_bytes() for path in paths}, modified)


def stored(read: ForeignSession) -> list[AnyRecord]:
    """The records that an import makes."""
    return through_native(read)


def metadata_of(read: ForeignSession) -> Metadata:
    """The metadata that an import makes."""
    return apply_changes(Metadata(id=ID, created_at="2026-01-01T00:00:00.000Z"), read.metadata)


def back(dialect: ForeignFormat, source: InMemorySource) -> ExportedFiles:
    """A session as it comes back from a log of ours."""
    read = dialect.read(source)
    return dialect.write(metadata_of(read), stored(read))


def view(read: ForeignSession) -> View:
    """What a session shows."""
    return fold(stored(read))


def numbered(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """Records as a store gives them back."""
    made = []
    for seq, record in enumerate(records, 1):
        full = replace(record, timestamp=record.timestamp or f"2026-01-01T00:00:{seq % 60:02d}.120Z")
        if isinstance(full, Message):
            full = replace(full, id=full.id or f"{seq:08d}-0000-4000-8000-000000000000")
        _, body = encode(full)
        found = decode(build_line(body, full.record_type, seq)).record
        assert found is not None
        made.append(found)
    return made


def values(data: bytes) -> list[Any]:
    """The lines of a file: objects, or the bytes of what is none."""
    lines = (line for line in data.split(b"\n") if line.strip(b" \t\r"))
    return [line if (value := parse_object(line)[0]) is None else value for line in lines]


def exactly(data: bytes) -> list[bytes]:
    """The same, so that 1, 1.0 and true are three things."""
    return [one if isinstance(one, bytes) else msgspec.json.encode(one, order="sorted") for one in values(data)]


def sound(read: ForeignSession) -> None:
    """What holds for whatever was read."""
    ids = [item.id for item in read.items]
    assert all(ids) and len(set(ids)) == len(ids)
    summaries = [item for item in read.items if isinstance(item, Summary)]
    assert all(one.first_kept is None or one.first_kept in ids for one in summaries)


# --- random files ---------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e9, 1e9) | texts
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


def objects(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Objects with some keys of a format, now and then of another type, and unknown ones."""

    @st.composite
    def made(draw: st.DrawFn) -> dict[str, Any]:
        value = {key: draw(one) for key, one in required.items()}
        for key, one in optional.items():
            if draw(st.booleans()):
                value[key] = draw(one)
        if draw(st.integers(0, 5)) == 0:
            value[draw(st.sampled_from([*required, *optional]))] = draw(anything)
        if draw(st.integers(0, 3)) == 0:
            value |= draw(st.dictionaries(texts, anything, max_size=2))
        return value

    return made()


def files(lines: st.SearchStrategy[Any], *, surrogates: bool = True) -> st.SearchStrategy[bytes]:
    """Whole files: sound lines in some writing, blank lines and noise."""
    writings = st.sampled_from(
        [
            lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
            json.dumps,
            lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\r",
        ]
    )
    said = st.builds(lambda value, how: how(value).encode(), lines, writings)
    noise = st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")) | st.sampled_from(
        [b"", b"  ", b"\r", b"\0\0\0\0", b"[1]", b'{"a":"\\ud800"}', b'{"a":1e999}', b'{"a":NaN}']
    )
    rows = st.lists(st.one_of(said, said, said, noise), max_size=8)
    return st.builds(lambda rows, end: b"\n".join(rows) + end, rows, st.sampled_from([b"\n", b""]))


# --- sessions of ours

Turn = tuple[str, str, list[tuple[str, int]]]
turns: st.SearchStrategy[list[Turn]] = st.lists(
    st.tuples(
        texts.filter(str.strip), texts.filter(str.strip), st.lists(st.tuples(texts, st.integers(0, 9)), max_size=2)
    ),
    min_size=1,
    max_size=4,
)


def talk(given: list[Turn]) -> list[AnyRecord]:
    """A conversation: what was said, answered, and asked of tools."""
    made: list[AnyRecord] = []
    for number, (asked, answered, calls) in enumerate(given):
        made.append(user(asked))
        names = [f"c{number}.{place}" for place in range(len(calls))]
        made.append(
            assistant(
                [
                    Thinking(f"thought {number}"),
                    Text(answered),
                    *(ToolCall(name, "tool", {text: count}) for name, (text, count) in zip(names, calls, strict=True)),
                ],
                model="m",
            )
        )
        made += [tool_result(name, f"result {name}", tool_name="tool") for name in names]
    return numbered(made)


def said(records: Iterable[AnyRecord]) -> list[Any]:
    """What a conversation says, in whatever format it was."""
    return [(one.role, one.text, one.tool_calls, one.tool_call_id) for one in records if isinstance(one, Message)]


def there_and_back(dialect: ForeignFormat, records: list[AnyRecord], *losses: str) -> list[Any]:
    """What a session of ours says after it was written in a format and read again.

    `losses` are what the format has no place for, without their counts.
    """
    written = dialect.write(Metadata(id=ID, created_at="2026-01-01T00:00:00.000Z"), records)
    assert {loss.rpartition(":")[0] for loss in written.losses} == set(losses)
    path = next(iter(written.files))
    read = dialect.read(InMemorySource(path.removesuffix(".jsonl"), written.files))
    assert not read.damage
    assert dialect.write(metadata_of(read), stored(read)).files == written.files
    return said(view(read).messages)


# --- damage ---------------------------------------------------------------------------------


class Damage:
    """Tests that every dialect passes with its golden sessions."""

    dialect: ClassVar[Any]
    sessions: ClassVar[Sequence[InMemorySource]]
    exact = False

    def check(self, source: InMemorySource, path: str, data: bytes) -> ForeignSession:
        """Read a damaged file; nothing of it is lost on the way back."""
        broken = source._replace(files={**source.files, path: data})
        read: ForeignSession = type(self).dialect.read(broken)
        sound(read)
        assert read.line_count == sum(len(values(broken.files[one])) for one in self._lined(source))
        written = self.dialect.write(metadata_of(read), stored(read))
        whole = b"".join(written.files[one] for one in sorted(written.files) if ".jsonl" in one)
        given = b"\n".join(broken.files[one] for one in self._lined(source))
        if self.exact:
            assert whole.endswith(given)
        wanted = exactly(given)
        assert not wanted or exactly(whole)[-len(wanted) :] == wanted
        return read

    @staticmethod
    def _lined(source: InMemorySource) -> list[str]:
        return [path for path in source.files if path.endswith(".jsonl")]

    def test_a_file_cut_at_any_byte_loses_only_its_last_line(self) -> None:
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            tail = max(len(data) - 500, 0)
            for at in (*range(0, tail, 11), *range(tail, len(data))):
                read = self.check(source, path, data[:at])
                torn = [one for one in read.damage if one.path == path and one.end > one.start]
                assert len(torn) <= 1

    def test_a_flipped_bit_costs_one_line_at_most(self) -> None:
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            for at in range(0, len(data), 9):
                flipped = bytearray(data)
                flipped[at] ^= 1 << (at // 9 % 8)
                read = self.check(source, path, bytes(flipped))
                assert len([one for one in read.damage if one.end > one.start]) <= 2  # or a newline

    def test_a_run_of_nul_bytes_is_named_and_hides_no_neighbour(self) -> None:
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            lines = data.split(b"\n")[:-1]
            for at in range(len(lines) + 1):
                spoiled = b"\n".join((*lines[:at], b"\0" * 5000, *lines[at:], b""))
                read = self.check(source, path, spoiled)
                assert [one for one in read.damage if one.end - one.start == 5000]
                assert len([one for one in read.damage if one.end > one.start]) == 1

    def test_a_line_beyond_all_measure_and_one_nested_beyond_it_are_kept(self) -> None:
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            for junk in (b'{"a":' * 400 + b"1" + b"}" * 400, b"[" * 100_000, b'"' + b"x" * 9999):
                read = self.check(source, path, data + junk + b"\n")
                assert read.damage and read.damage[-1].end - read.damage[-1].start == len(junk)

    def test_what_came_in_goes_back_out(self) -> None:
        for source in self.sessions:
            written = back(type(self).dialect, source)
            assert not written.losses
            if self.exact:
                assert written.files == source.files
            joined = b"".join(written.files.values())
            if not self.exact:
                assert exactly(joined) == exactly(b"".join(source.files.values()))
