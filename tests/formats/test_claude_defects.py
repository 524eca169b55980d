"""The defects of reference/formats/claude-code.md, section 5, one test each, as far as reading a
transcript can have them. (Retention, memory, a stale index and moved projects are a store's.)"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from msgspec.structs import replace

from everlog.context.build import build
from everlog.interop.formats import format_types
from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import ForeignSession, InMemorySource, Summary
from everlog.log import backward_read
from everlog.log.fold import fold
from everlog.model import Event, Message, Metadata, Tombstone, user
from tests.formats.claude_session import ID, Session, encode, hidden, read, shown, uuid
from tests.formats.native import through_native

PATH = f"{ID}.jsonl"


def conversation() -> Session:
    session = Session()
    session.user("one")
    session.call("t1", response="r")
    session.call("t2", response="r")
    session.result("t1", "first", parent=uuid(2))
    session.result("t2", "second", parent=uuid(3))
    session.answer("two")
    session.compact("summary")
    session.user("three")
    session.answer("four")
    return session


def texts(objects: list[dict[str, Any]]) -> set[str]:
    """What a reader must find, record by record."""
    found = set()
    for one in objects:
        if one["type"] in ("user", "assistant") and not one.get("isCompactSummary"):
            found.add(one["uuid"])
    return found


def in_conversation(made: ForeignSession) -> set[str]:
    away = hidden(made)
    return {item.id for item in made.items if isinstance(item, Message) and item.id not in away}


# --- broken chains --------------------------------------------------------------------------


@pytest.mark.parametrize("gone", range(10))
def test_without_any_one_record_the_rest_is_shown_and_the_gap_is_named(gone: int) -> None:
    objects = conversation().objects
    removed = objects.pop(gone)
    made = read(encode(objects))
    assert in_conversation(made) == texts(objects)
    named = [one.problem for one in made.damage]
    has_children = any(removed["uuid"] in (o["parentUuid"], o.get("logicalParentUuid")) for o in objects)
    assert (f"parent {removed['uuid']} is missing" in named) == has_children
    assert len(made.items) == len(objects)


def test_without_any_two_records_the_rest_is_shown() -> None:
    whole = conversation().objects
    for first in range(len(whole)):
        for second in range(first):
            objects = [one for place, one in enumerate(whole) if place not in (first, second)]
            assert in_conversation(read(encode(objects))) == texts(objects)


def test_a_circle_of_parents_ends_and_hides_nothing() -> None:
    session = conversation()
    session.objects[0]["parentUuid"] = uuid(6)
    made = session.read()
    assert in_conversation(made) == texts(session.objects)
    assert [one.problem for one in made.damage] == [f"parent {uuid(6)} forms a cycle"]


def test_records_that_are_all_each_other_s_parents_are_all_shown() -> None:
    session = Session()
    for number in range(6):
        session.user(f"{number}", parent=uuid((number + 1) % 6 + 1))
    assert len(shown(session.read())) == 6


def test_a_record_that_is_its_own_parent_is_shown_with_what_is_before_it() -> None:
    session = Session()
    session.user("one")
    session.user("two", parent=uuid(2))
    assert shown(session.read()) == ["one", "two"]


def test_a_circle_behind_the_end_of_the_conversation_is_shown() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    session.user("three", parent=uuid(4))
    session.answer("four", parent=uuid(3))
    assert shown(session.read()) == ["one", "two", "three", "four"]


def test_parents_that_are_no_strings_are_none() -> None:
    session = Session()
    odd: tuple[Any, ...] = (7, [], {"a": 1}, True)
    for parent in odd:
        session.user("x")
        session.objects[-1]["parentUuid"] = parent
        session.objects[-1]["logicalParentUuid"] = parent
    assert len(session.read().items) >= 4


def test_of_equal_uuids_the_last_counts_and_the_others_are_kept() -> None:
    session = Session()
    session.user("first text")
    session.answer("hi")
    again = json.loads(json.dumps(session.objects[0]))
    again["message"]["content"] = "second text"
    session.objects.append(again)
    made = session.read()
    assert len({item.id for item in made.items}) == 3
    first = made.items[0]
    assert isinstance(first, Event) and first.kind == "claude.duplicate"
    assert "second text" in shown(made) and "first text" not in shown(made)
    written = claude.write(Metadata(id="x"), through_native(made))
    assert [json.loads(line) for line in written.files[PATH].splitlines()] == session.objects


def test_a_long_chain_with_many_missing_parents_is_read_in_one_pass() -> None:
    session = Session()
    for number in range(20_000):
        session.user(f"{number}", parent=f"nobody-{number}" if number % 2 else True)
    made = session.read()
    assert len(shown(made)) == 20_000
    assert len(made.damage) == 10_000


# --- parallel tools -------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3)])
def test_four_parallel_calls_keep_all_their_results(order: tuple[int, ...]) -> None:
    session = Session()
    session.user("go")
    for number in (1, 2, 3, 4):
        session.call(f"t{number}", response="r")
    for number in order:
        session.result(f"t{number}", f"result {number}", parent=uuid(1 + number))
    session.answer("done")
    made = session.read()
    assert hidden(made) == set()
    context = build(backward_read.read_live(reversed(through_native(made))))
    assert sorted(one.text for one in context.messages if one.role == "toolResult") == [
        "result 1",
        "result 2",
        "result 3",
        "result 4",
    ]
    assert context.left_out == ()


def test_a_result_behind_a_hook_s_record_is_found_by_its_call() -> None:
    session = Session()
    session.user("go")
    first = session.call("t1", response="r")
    session.call("t2", response="r")
    hook = session.add("progress", parent=first, data={"type": "hook_progress"})
    session.result("t1", "one", parent=hook, sourceToolAssistantUUID=first)
    session.result("t2", "two", parent=uuid(3))
    session.answer("done")
    assert hidden(session.read()) == set()


# --- torn, NUL, damaged ---------------------------------------------------------------------


def test_a_file_cut_at_any_byte_gives_everything_before_the_cut() -> None:
    session = Session()
    session.user("one é")
    session.answer("two")
    whole = session.data()
    ends = [at for at, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole)):
        made = read(whole[:cut])
        complete = sum(end <= cut for end in ends)  # the newline itself may be missing
        assert len(shown(made)) == complete
        torn = whole[:cut].rpartition(b"\n")[2]
        assert len(made.damage) == (1 if torn and cut not in ends else 0)
        written = claude.write(Metadata(id="x"), through_native(made))
        assert b"".join(written.files.values()).strip(b"\n") == whole[:cut].strip(b"\n") or not cut


@pytest.mark.parametrize("filler", [b"", b"\0"])
def test_a_record_appended_to_a_torn_or_zeroed_one_is_found(filler: bytes) -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    session.user("three")
    first, second, third = session.data().splitlines(keepends=True)
    for cut in range(1, len(second) - 1):
        data = first + second[:cut] + filler * (len(second) - cut) + third
        made = read(data)
        assert shown(made) == ["one", "three"], second[:cut]
        assert any("is missing" in one.problem for one in made.damage)


def test_a_run_of_nuls_is_kept_and_its_neighbours_are_shown() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    first, second = session.data().splitlines(keepends=True)
    for data in (first + b"\0" * 5000 + b"\n" + second, first + b"\0" * 5000 + second):
        made = read(data)
        assert shown(made) == ["one", "two"]
        (event,) = [item for item in made.items if isinstance(item, Event)]
        assert event.kind == "claude.damaged"
        assert b64decode(event.data["base64"]) == b"\0" * 5000
        (lost,) = made.damage
        assert (lost.path, lost.start, lost.end) == (PATH, len(first), len(first) + 5000)


def test_two_records_on_one_line_are_both_read() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    for between in (b"", b" ", b"\x0b", b"\x08", b"J", b"\0\0"):
        made = read(session.data().replace(b"}\n{", b"}" + between + b"{"))
        assert shown(made) == ["one", "two"]
        assert made.line_count == 1


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1,2]",
        b"null",
        b'"text"',
        b"5",
        b'{"a":1',
        b"\xff\xfe\xfd",
        b"[" * 5000,
        b'{"a":' * 400 + b"1" + b"}" * 400,
        b'{"type":"user"} trailing',
    ],
)
def test_a_line_that_is_no_record_is_kept_named_and_written_back(line: bytes) -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    first, second = session.data().splitlines(keepends=True)
    data = first + line + b"\n" + second
    made = read(data)
    assert shown(made) == ["one", "two"]
    assert [one.start for one in made.damage] == [len(first)]
    written = claude.write(Metadata(id="x"), through_native(made))
    assert written.files[PATH].splitlines()[1] == line


def test_any_flipped_bit_costs_one_record_at_most() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    session.user("three")
    first, second, third = session.data().splitlines(keepends=True)
    for place in range(len(second) - 1):
        for bit in (0, 4, 7):
            broken = bytearray(second)
            broken[place] ^= 1 << bit
            made = read(first + bytes(broken) + third)
            assert {"one", "three"} <= {item.text for item in made.items if isinstance(item, Message)}
            through_native(made)


def test_a_line_over_the_limit_is_kept_and_named() -> None:
    assert format_types.MAX_LINE_BYTES == 64_000_000
    session = Session()
    session.user("one")
    data = session.data() + b'{"type":"x","a":"' + b"a" * format_types.MAX_LINE_BYTES + b'"}\n'
    session.answer("two")
    made = read(data + session.data().splitlines(keepends=True)[1])
    assert shown(made) == ["one", "two"]
    assert [one.problem for one in made.damage] == ["longer than 64000000 bytes"]


# --- lone surrogates ------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [b"\\ud83d", b"\\udc00 x", b"\xed\xa0\xbd", b"\xff"])
def test_a_lone_surrogate_is_shown_replaced_and_written_back_as_it_was(broken: bytes) -> None:
    session = Session()
    session.user("cut here: @")
    session.answer("fine")
    data = session.data().replace(b"@", broken)
    made = read(data)
    first, second = shown(made)
    assert first.startswith("cut here: \N{REPLACEMENT CHARACTER}")
    assert second == "fine"
    assert [one.problem for one in made.damage] == ["text that is not valid Unicode is read as U+FFFD"]
    records = through_native(made)
    assert claude.write(Metadata(id="x"), records).files[PATH] == data
    records.append(replace(user("resumed"), seq=3))
    again = claude.write(Metadata(id="x"), records).files[PATH]
    assert again.startswith(data)
    assert shown(read(again))[-1] == "resumed"


def test_a_surrogate_in_a_record_beside_the_chain_is_kept_too() -> None:
    data = b'{"type":"last-prompt","lastPrompt":"\\ud83d","sessionId":"x"}\n'
    made = read(data)
    written = claude.write(Metadata(id="x"), through_native(made))
    assert b"".join(written.files.values()) == data


# --- compaction -----------------------------------------------------------------------------


def test_two_compactions_are_crossed_by_the_viewer_and_honoured_by_the_context() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    session.compact("the first summary")
    session.user("three")
    session.answer("four")
    session.compact("the second summary")
    session.user("five")
    made = session.read()
    assert shown(made) == ["one", "two", "three", "four", "five"]
    summaries = [item for item in made.items if isinstance(item, Summary)]
    assert [one.text for one in summaries] == ["the first summary", "the second summary"]
    assert [one.tokens_before for one in summaries] == [99, 99]
    records = through_native(made)
    assert [one.text for one in fold(records).messages] == shown(made)
    context = build(backward_read.read_live(reversed(records)))
    assert [one.text for one in context.messages] == ["the second summary", "five"]


def test_a_boundary_that_names_no_record_before_it_is_crossed_by_order() -> None:
    session = Session()
    session.user("one")
    session.compact("summary")
    session.user("two")
    del session.objects[1]["logicalParentUuid"]
    assert shown(session.read()) == ["one", "two"]


# --- usage ----------------------------------------------------------------------------------


def test_usage_of_a_response_adds_up_to_the_largest_count_of_its_records() -> None:
    session = Session()
    session.user("go")
    for number, output in enumerate((3, 50, 40)):
        session.call(
            f"t{number}",
            response="r",
            usage={
                "input_tokens": 10,
                "output_tokens": output,
                "cache_read_input_tokens": 7,
                "cache_creation_input_tokens": 5,
            },
        )
    session.call("t9", response="r", requestId="another", usage={"output_tokens": 1})
    usages = [item.usage for item in session.read().items if isinstance(item, Message)]
    assert [one.output_tokens if one else None for one in usages] == [None, 3, 47, None, 1]
    counted = usages[1]
    assert counted is not None
    assert (counted.input_tokens, counted.cache_read_tokens, counted.cache_write_tokens) == (10, 7, 5)


def test_records_of_a_fork_have_the_ids_of_the_records_they_were_copied_from() -> None:
    session = conversation()
    fork = [{**one, "sessionId": uuid(99)} for one in session.objects]
    other = claude.read(InMemorySource(uuid(99), {f"{uuid(99)}.jsonl": encode(fork)}))
    ids = {item.id for item in session.read().items}
    assert ids == {item.id for item in other.items}


# --- orphans --------------------------------------------------------------------------------


def test_a_call_that_was_cut_short_is_answered_once_when_the_session_goes_on() -> None:
    session = Session()
    session.user("go")
    call = session.call("t1")
    records = through_native(session.read())
    assert claude.write(Metadata(id="x"), records).files[PATH] == session.data()
    records.append(replace(user("go on"), seq=3))
    written = claude.write(Metadata(id="x"), records)
    again = read(written.files[PATH])
    results = [item for item in again.items if isinstance(item, Message) and item.tool_call_id]
    assert [(one.tool_call_id, one.is_error) for one in results] == [("t1", True)]
    assert json.loads(written.files[PATH].splitlines()[2])["parentUuid"] == call
    twice = claude.write(Metadata(id="x"), through_native(again))
    assert twice.files == written.files


def test_an_unknown_record_never_warns() -> None:
    session = Session()
    for number in range(1000):
        session.meta("brand-new", number=number)
    assert session.read().damage == ()


def test_hidden_messages_that_we_did_not_hide_go_back_and_those_that_we_did_do_not() -> None:
    session = Session()
    session.user("one")
    fork = session.answer("two")
    session.user("left")
    session.user("three", parent=fork)
    session.answer("four")
    records = through_native(session.read())
    records.append(Tombstone(seq=len(records) + 1, deletes=(1, 2)))
    written = claude.write(Metadata(id="x"), records)
    again = read(written.files[PATH])
    assert {item.text for item in again.items if isinstance(item, Message)} == {"left", "three", "four"}
    assert shown(again) == ["three", "four"]
