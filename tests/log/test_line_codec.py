"""One record, one line: round trips, flipped bits, hostile bytes."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import FormatError
from everlog.log import line_codec
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    Message,
    Meta,
    Rewind,
    Tombstone,
    ToolCall,
    Unknown,
    Usage,
    assistant,
    user,
)
from everlog.stores import rules
from tests.examples import examples

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
texts = st.text(st.characters(exclude_categories=()))  # lone surrogates included
texts_of_json = st.text(st.characters(exclude_categories=["Cs"]))
finite = st.floats(allow_nan=False, allow_infinity=False)
call = {"id": "c", "name": "Read"}
blocks = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, texts)
    | st.builds(
        lambda i, n, a: {"type": "toolCall", "id": i, "name": n, "arguments": a},
        texts,
        texts,
        st.dictionaries(st.text(), json_values, max_size=3),
    )
    | st.builds(lambda data: {**data, "type": "odd"}, st.dictionaries(st.text(), json_values, max_size=3)),
    max_size=4,
)
records: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(lambda content, sender: user(content, sender=sender), blocks, texts),
    st.builds(lambda first, summary: Compaction(first_kept_seq=first, summary=summary), st.integers(0, 2**53), texts),
    st.builds(lambda seqs: Tombstone(deletes=tuple(seqs)), st.lists(st.integers(0, 2**53))),
    st.builds(lambda seq: Rewind(to_seq=seq), st.integers(0, 2**53)),
    st.builds(lambda data: Meta(set=data), st.dictionaries(st.text(), json_values, max_size=4)),
    st.builds(
        lambda kind, data: Event(kind=kind, data=data), texts, st.dictionaries(st.text(), json_values, max_size=4)
    ),
)


def _line(record: AnyRecord, seq: int = 7) -> bytes:
    return line_codec.build_line(line_codec.encode(record)[1], record.record_type, seq)


@given(records, st.integers(0, 2**53))
@settings(max_examples=examples(400), deadline=None)
def test_what_is_written_is_read_back_and_written_again_the_same(record: AnyRecord, seq: int) -> None:
    line = _line(record, seq)
    assert b"\n" not in line
    assert line_codec.peek_seq(line) == seq
    reading = line_codec.decode(line)
    assert reading.problem == ""
    assert reading.checked
    assert reading.record is not None
    assert type(reading.record) is type(record)
    assert reading.record.seq == seq
    assert _line(reading.record, seq) == line
    assert line_codec.as_stored(record, seq, line, plain=False) == reading.record
    if line_codec.encode_plain(record) is not None:
        assert line_codec.as_stored(record, seq, line, plain=True) == reading.record


@given(st.dictionaries(st.text(min_size=1), json_values, max_size=5), st.text(min_size=1))
@settings(max_examples=examples(200), deadline=None)
def test_kinds_and_keys_that_we_do_not_know_survive(extra: dict[str, object], kind: str) -> None:
    given_object = {**extra, "recordType": f"x-{kind}"}
    for key in ("schemaVersion", "seq", "crc", "id", "timestamp"):
        given_object.pop(key, None)
    record = line_codec.from_object(given_object)
    assert isinstance(record, Unknown)
    line = _line(record)
    read = line_codec.decode(line).record
    assert read is not None
    again = msgspec.json.decode(_line(read))
    for key in ("schemaVersion", "seq", "crc"):
        del again[key]
    assert again == msgspec.json.decode(msgspec.json.encode(line_codec.replace_surrogates(given_object)))


kept_values = st.recursive(  # what a parser gives
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts_of_json | finite,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts_of_json, inner, max_size=4),
    max_leaves=12,
)


@given(
    st.builds(
        lambda text, data: assistant(
            [{"type": "text", "text": text}, {"type": "toolCall", **call, "arguments": data}], id="a", timestamp="t"
        ),
        texts_of_json,
        st.dictionaries(texts_of_json, kept_values, max_size=3),
    )
    | st.builds(
        lambda kind, data: Event(kind=kind, data=data, id="a", timestamp="t"),
        texts_of_json,
        st.dictionaries(texts_of_json, kept_values, max_size=3),
    ),
    kept_values,
)
@settings(max_examples=examples(300), deadline=None)
def test_a_record_with_a_key_of_another_is_written_as_if_its_line_came_from_anywhere(
    record: Message | Event, value: object
) -> None:
    made = line_codec.with_key(record, "claude", value)
    elsewhere = msgspec.structs.replace(made, line=made.line.removesuffix(line_codec.SEAL))
    assert line_codec.read_back(elsewhere) is None
    _, body = line_codec.encode(elsewhere)
    (one,) = rules.prepare_records([made], lambda: "now", lambda: "id")
    assert one.body == body
    line = line_codec.build_line(body, record.record_type, 7)
    assert line_codec.as_stored(one.record, 7, line, plain=one.plain) == line_codec.decode(line).record
    assert made.seq == 0  # it stays as it was


def test_a_record_that_was_changed_since_is_written_as_it_is_now() -> None:
    made = line_codec.with_key(user("first", id="a", timestamp="t"), "claude", {"x": 1})
    assert line_codec.read_back(made) == made
    for changed in (
        msgspec.structs.replace(made, content=user("second").content),
        msgspec.structs.replace(made, id="b"),
        msgspec.structs.replace(made, timestamp="u"),
        msgspec.structs.replace(made, sender="x"),
        msgspec.structs.replace(made, role="assistant"),
    ):
        assert line_codec.read_back(changed) is None
        (one,) = rules.prepare_records([changed], lambda: "now", lambda: "id")
        body = msgspec.json.decode(one.body)
        assert body.pop("claude") == {"x": 1}
        assert line_codec.from_object(body).id == changed.id
        assert isinstance(one.record, Message)
        assert line_codec.without_position(one.record) == line_codec.without_position(changed)


@pytest.mark.parametrize("key", ["id", "seq", "crc", "content", "recordType", "timestamp", "ä", 'a"'])
def test_a_key_that_is_ours_or_needs_escapes_is_looked_at(key: str) -> None:
    made = line_codec.with_key(user("x", id="a", timestamp="t"), key, "y")
    assert line_codec.read_back(made) is None


def test_what_a_record_keeps_may_not_be_deeper_than_a_reader_goes() -> None:
    deep: list[object] = []
    for _ in range(line_codec.MAX_DEPTH):
        deep = [deep]
    made = line_codec.with_key(user("x", id="a", timestamp="t"), "claude", deep)
    with pytest.raises(FormatError, match="nested deeper"):
        rules.prepare_records([made], lambda: "now", lambda: "id")


def test_a_value_that_a_field_cannot_hold_is_refused_however_its_line_was_made() -> None:
    usage = Usage(input_tokens=True)
    made = line_codec.with_key(assistant("x", id="a", timestamp="t", usage=usage), "claude", 1)
    with pytest.raises(FormatError, match="usage"):
        rules.prepare_records([made], lambda: "now", lambda: "id")


def test_every_flipped_bit_is_noticed() -> None:
    line = _line(assistant('Ünïcode and "quotes"'), 12)
    for index in range(len(line)):
        for bit in range(8):
            bad = bytearray(line)
            bad[index] ^= 1 << bit
            if bytes(bad[index : index + 1]) == b"\n":
                continue  # two lines then, and neither is whole
            reading = line_codec.decode(bytes(bad))
            assert reading.record is None or not reading.checked


HOSTILE = {
    "deep nesting": b'{"recordType":"event","seq":1,"p":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "huge integer": b'{"recordType":"event","seq":1,"kind":"x","p":' + b"9" * 5000 + b"}",
    "raw NUL": b'{"recordType":"event","seq":1,"kind":"a\0b"}',
    "NULs": b"\0" * 1728,
    "lone surrogate": b'{"recordType":"event","seq":1,"kind":"\\ud83d"}',
    "invalid UTF-8": b'{"recordType":"event","seq":1,"kind":"\xff\xfe"}',
    "invalid UTF-8 in an unknown key": b'{"recordType":"event","seq":1,"kind":"x","p":"\xff"}',
    "overlong UTF-8": b'{"recordType":"event","seq":1,"kind":"\xc0\xaf"}',
    "surrogate in UTF-8": b'{"recordType":"event","seq":1,"kind":"\xed\xa0\x80"}',
    "BOM": b'\xef\xbb\xbf{"recordType":"event","seq":1,"kind":"x"}',
    "two on a line, bare CR": b'{"recordType":"event","seq":1,"kind":"x"}\r{"recordType":"x"}',
    "duplicate role": b'{"recordType":"message","seq":1,"role":"user","role":"assistant","content":[]}',
    "duplicate key inside": b'{"recordType":"event","seq":1,"kind":"x","data":{"a":1,"a":2}}',
    "NaN": b'{"recordType":"event","seq":1,"kind":"x","p":NaN}',
    "infinity": b'{"recordType":"event","seq":1,"kind":"x","p":-Infinity}',
    "1e999": b'{"recordType":"event","seq":1,"kind":"x","p":1e999}',
    "not an object": b"[1,2]",
    "null": b"null",
    "empty": b"",
    "spaces": b"   ",
    "control character": b'{"recordType":"event","seq":1,"kind":"a\x01b"}',
    "trailing comma": b'{"recordType":"event","seq":1,"kind":"x",}',
    "single quotes": b"{'recordType':'event'}",
    "negative seq": b'{"recordType":"event","seq":-1,"kind":"x"}',
    "seq is text": b'{"recordType":"event","seq":"1","kind":"x"}',
    "no role": b'{"recordType":"message","seq":1,"content":[]}',
    "bare content": b'{"recordType":"message","seq":1,"role":"user","content":"text"}',
    "content of scalars": b'{"recordType":"message","seq":1,"role":"user","content":[1]}',
    "wrong crc": b'{"recordType":"event","schemaVersion":1,"seq":1,"kind":"x","crc":"00000000"}',
    "upper-case crc": _line(Event(kind="x", timestamp="t"))[:-10]
    + _line(Event(kind="x", timestamp="t"))[-10:-2].upper()
    + b'"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_are_refused_with_a_reason_quickly(name: str) -> None:
    start = time.process_time()
    reading = line_codec.decode(HOSTILE[name])
    assert reading.record is None
    assert reading.problem
    assert len(reading.problem) < 250
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"recordType":"message","seq":1,"role":"user","content":[{"type":"text","text":"a\u2028b"}]}', "a\u2028b"),
        ('{"recordType":"message","seq":1,"role":"user","content":[{"type":"text","text":"a\\u0000b"}]}', "a\0b"),
        (' {"recordType":"message","seq":1,"role":"user","content":[{"type":"text","text":"crlf"}]}\r', "crlf"),
    ],
)
def test_odd_but_valid_lines_are_read(line: str, text: str) -> None:
    record = line_codec.decode(line.encode()).record
    assert isinstance(record, Message)
    assert record.text == text


def test_three_hundred_thousand_keys_are_read_or_refused_within_a_second() -> None:
    keys = b",".join(b'"%d":0' % number for number in range(300_000))
    start = time.process_time()
    line_codec.decode(b'{"recordType":"x",' + keys + b"}")
    assert time.process_time() - start < 5


def test_a_newer_schema_version_is_kept_as_unknown() -> None:
    for line in (
        b'{"recordType":"message","schemaVersion":2,"seq":4,"role":"user","content":[]}',
        b'{"recordType":"hologram","schemaVersion":2,"seq":4}',
    ):
        record = line_codec.decode(line).record
        assert isinstance(record, Unknown)
        assert (record.schema_version, record.seq, record.line) == (2, 4, line)


def test_values_that_json_cannot_hold_are_refused() -> None:
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    for data in ({"x": object()}, {"x": 10**5000}, {"x": deep}, {"x": 1j}):
        with pytest.raises(FormatError):
            line_codec.encode(Event(kind="x", data=data))


def test_integers_and_depths_at_the_limit_come_back() -> None:
    deep: list[object] = []
    for _ in range(line_codec.MAX_DEPTH - 5):
        deep = [deep]
    event = Event(kind="x", data={"big": 2**200, "small": -(2**63), "deep": deep})
    assert line_codec.decode(_line(event)).record is not None


def test_a_changed_record_keeps_what_it_does_not_know() -> None:
    record = line_codec.from_object(
        {"recordType": "message", "role": "user", "content": [{"type": "text", "text": "a", "z": 1}], "k": 1}
    )
    changed = msgspec.structs.replace(record, role="assistant")
    body = msgspec.json.decode(line_codec.encode(changed)[1])
    assert body["role"] == "assistant"
    assert body["k"] == 1
    assert body["content"] == [{"type": "text", "text": "a", "z": 1}]


def test_from_object_names_what_is_wrong() -> None:
    for bad in ({"role": "user"}, {"recordType": "message", "role": "god", "content": []}):
        with pytest.raises(FormatError):
            line_codec.from_object(bad)


def test_tool_calls_are_typed() -> None:
    line = _line(assistant((ToolCall("c", "ls", {"path": "."}),)))
    record = line_codec.decode(line).record
    assert isinstance(record, Message)
    assert record.tool_calls == (ToolCall("c", "ls", {"path": "."}),)
