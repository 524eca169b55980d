"""pi's sessions where they lie: followed at the tip, read whole at a branch, added to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.errors import UnsupportedError
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import HiddenMessages, InMemorySource, ListingScan, Summary
from everlog.interop.formats.pi import FORMAT as pi
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Meta,
    OtherBlock,
    Rewind,
    Text,
    Thinking,
    Tombstone,
    ToolCall,
    Unknown,
    Usage,
    assistant,
    tool_result,
    user,
)
from tests.examples import examples
from tests.formats.mirror_checks import Mirror, context, cut, glanced, placed, plain
from tests.formats.round_trips import golden, texts, values, view

LIVE: ForeignFormat = pi
FULL = golden("pi", "2026-01-05T09-00-00-000Z_0198f3c2-7b6e-7d10-8a55-1f2e3d4c5b6a")
OLD = golden("pi", "2025-11-20T09-00-00-000Z_v1")
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "pi" / "large-session.jsonl"
NOW = "2026-01-01T00:00:01.000Z"
UUIDS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(10)]
HEADER = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"}


def lines_of(source: InMemorySource) -> list[bytes]:
    return next(iter(source.files.values())).split(b"\n")[:-1]


def message(name: str, parent: str | None, text: str, role: str = "user") -> dict[str, Any]:
    said = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": 1}
    return {"type": "message", **linked(name, parent), "message": said}


def linked(name: str, parent: str | None) -> dict[str, Any]:
    return {"id": name, "parentId": parent, "timestamp": NOW}


def compaction(name: str, parent: str, first: str, text: str = "sum") -> dict[str, Any]:
    kept = {"summary": text, "firstKeptEntryId": first, "tokensBefore": 7}
    return {"type": "compaction", **linked(name, parent), **kept}


# pi writes it since 0.86, so that an edit is understood.
SYSTEM = {"type": "message", **linked("0", None), "message": {"role": "system", "content": "", "sections": {}}}


def edit(name: str, parent: str, target: str, replacement: Any = None) -> dict[str, Any]:
    what = {"targetId": target, "replacement": replacement}
    return {"type": "context_edit", **linked(name, parent), **what}


def encoded(*entries: Any) -> list[bytes]:
    return [one if isinstance(one, bytes) else json.dumps(one).encode() for one in entries]


def followed(*entries: Any, header: Any = HEADER) -> Mirror:
    mirror = Mirror(LIVE, "s")
    mirror.grow(encoded(header, *entries))
    return mirror


def grown(mirror: Mirror, *entries: Any) -> Mirror:
    mirror.grow(encoded(*entries))
    return mirror


def agrees(mirror: Mirror) -> None:
    """What is shown is what reading the file shows."""
    read = view(pi.read(mirror.source))
    assert [(one.id, one.role, one.content) for one in mirror.view.messages] == [
        (one.id, one.role, one.content) for one in read.messages
    ]
    assert mirror.context == context(read)


# --- following


def test_the_golden_sessions_are_followed_as_they_are_read() -> None:
    for source in (FULL, OLD):
        read = pi.read(source)
        mirror = Mirror(LIVE, source.name)
        mirror.grow(lines_of(source))
        assert plain(mirror.records) == plain(read.items)
        assert mirror.context == context(view(read))
        made = next(one for one in read.items if isinstance(one, Summary))
        ours = next(one for one in mirror.records if isinstance(one, Compaction))
        assert (ours.id, ours.tokens_before) == (made.id, made.tokens_before)


def test_lines_in_any_pieces_show_the_same() -> None:
    for source in (FULL, OLD):
        lines = lines_of(source)
        for place in range(len(lines) + 1):
            mirror = Mirror(LIVE, source.name)
            for piece in cut(lines, [place, place + 3]):
                mirror.grow(piece)
            agrees(mirror)


def test_growth_at_the_tip_never_needs_the_whole_file() -> None:
    lines = encoded(
        HEADER,
        {"type": "model_change", **linked("m", None), "provider": "p", "modelId": "x"},
        message("1", "m", "a"),
        {"type": "custom", **linked("c", "1"), "customType": "todo", "data": {}},
        message("2", "c", "b", "assistant"),
        {"type": "label", **linked("l", "2"), "targetId": "1", "label": "start"},
        {"type": "custom_message", **linked("n", "l"), "content": "note"},
        edit("e", "n", "2"),
        {"type": "from-the-future", **linked("f", "e")},
        message("3", "f", "c"),
    )
    mirror = Mirror(LIVE, "s")
    for line in lines:
        mirror.grow([line])
    assert mirror.wholes == 0
    assert mirror.texts == ["a", "note", "c"]
    agrees(mirror)
    model = {"provider": "p", "model": "x"}
    assert mirror.notes == {"lines": 10, "session": "s", "version": 3, "tip": "3", "edits": True, **model}


def test_a_branch_is_told_by_the_whole_file_and_left_again_likewise() -> None:
    mirror = followed(message("1", None, "root"), message("2", "1", "left"))
    grown(mirror, message("3", "1", "right"))
    assert (mirror.texts, mirror.wholes) == (["root", "right"], 1)
    grown(mirror, message("4", "3", "right on"))
    assert (mirror.texts, mirror.wholes) == (["root", "right", "right on"], 1)
    grown(mirror, message("5", "2", "left again"))
    assert mirror.texts == ["root", "left", "left again"]
    assert len(plain(mirror.records)) == 5
    agrees(mirror)


def test_a_new_root_starts_the_conversation_anew() -> None:
    mirror = grown(followed(message("1", None, "old")), message("2", None, "new"))
    assert (mirror.texts, mirror.wholes) == (["new"], 1)


def test_a_parent_that_was_damaged_hides_nothing() -> None:
    mirror = followed(message("1", None, "a"), b'{"type":"message","id":"2","par')
    grown(mirror, message("3", "2", "b"))
    assert (mirror.texts, mirror.wholes) == (["a", "b"], 1)
    grown(mirror, b"", b"\0\0", b"[1]", message("4", "3", "c"))
    assert (mirror.texts, mirror.wholes) == (["a", "b", "c"], 1)


def test_an_id_that_comes_twice_in_a_row_is_two_entries() -> None:
    mirror = grown(followed(message("1", None, "a")), message("1", "1", "b"))
    assert mirror.texts == ["a", "b"]
    agrees(mirror)


def test_a_compaction_of_pis_own_keeps_what_the_whole_file_says() -> None:
    info = {"type": "session_info", **linked("i", "1"), "name": "x"}
    mirror = followed(message("1", None, "a"), info, message("2", "i", "b"))
    grown(mirror, compaction("c", "2", "i"))
    assert (mirror.context, mirror.wholes) == (["sum", "b"], 1)
    grown(mirror, message("3", "c", "c"), compaction("d", "3", "", "all"))
    assert (mirror.context, mirror.wholes) == (["all"], 1)
    agrees(mirror)


def test_an_edit_with_a_new_text_is_told_by_the_whole_file_and_a_deletion_at_the_tip() -> None:
    mirror = grown(followed(message("1", None, "a")), edit("2", "1", "1", {"content": "b"}))
    assert (mirror.texts, mirror.wholes) == (["b"], 1)
    agrees(mirror)
    grown(mirror, edit("3", "2", "1"))
    assert (mirror.texts, mirror.wholes) == ([], 2)
    agrees(mirror)
    other = grown(followed(message("1", None, "a")), edit("2", "1", "1"))
    assert (other.texts, other.wholes) == ([], 0)
    grown(other, edit("3", "2", "1", {"content": "b"}))
    assert (other.texts, other.wholes) == (["b"], 1)
    agrees(other)


def test_what_is_noted_stays_small() -> None:
    mirror = followed(message("1" * 5000, None, "a"), edit("2", "1" * 5000, "x" * 5000))
    assert len(json.dumps(mirror.notes)) < 500
    assert mirror.texts == ["a"]


def test_a_file_without_its_header_is_followed_all_the_same() -> None:
    mirror = followed(message("1", None, "a"), message("2", "1", "b"), header=b"{torn")
    assert mirror.texts == ["a", "b"]
    mirror.append(user("x", id=UUIDS[1]))
    assert mirror.texts == ["a", "b", "x"]
    for lines in ([], [{"type": "message", "message": {"role": "user", "content": "a"}}]):
        with pytest.raises(UnsupportedError):
            followed(*lines, header=b"{torn").append(user("x"))


NOISE = (b"{", b"", b'{"type":"from-the-future"}', b'{"type":"model_change","modelId":"z"}')
said = st.one_of(
    st.builds(lambda text, role: {"role": role, "content": text}, texts, st.sampled_from(["user", "assistant", "hookMessage", "custom", "system"])),
    st.builds(lambda text: {"role": "assistant", "content": [{"type": "text", "text": text}], "model": "m"}, texts),
    st.builds(lambda text, out: {"role": "bashExecution", "command": text, "excludeFromContext": out}, texts, st.booleans()),
    st.sampled_from([{"role": "user"}, {"role": "user", "content": 5}, {"role": "user", "content": ["x"]}, {"role": "user", "content": [{"type": "image"}]}]),
)  # fmt: skip
places = st.integers(0, 12)
steps = st.one_of(
    st.builds(lambda one: ("message", {"message": one}), said),
    st.builds(lambda one: ("message", {"message": one}), said),
    st.builds(lambda one: ("custom_message", {"content": one}), texts),
    st.builds(lambda one: ("branch_summary", {"summary": one}), texts),
    st.builds(lambda name: ("session_info", {"name": name}), texts),
    st.builds(lambda name: ("model_change", {"modelId": name}), texts),
    st.builds(lambda at: ("context_edit", {"targetId": at, "replacement": None}), places),
    st.sampled_from([("session", {}), *(("noise", {"data": one}) for one in NOISE)]),
)


def chain_of(given: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """A header, and entries whose ids are their numbers, each the child of the one before."""
    lines, tip = encoded(HEADER), None
    for number, (kind, fields) in enumerate(given):
        if kind == "noise":
            lines.append(fields["data"])
            continue
        target = {"targetId": f"{fields['targetId']}"} if "targetId" in fields else {}
        lines += encoded({"type": kind, **linked(f"{number}", tip), **fields, **target})
        tip = f"{number}"
    return lines


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(steps, max_size=12), st.lists(places, max_size=3), st.booleans())
def test_any_chain_in_any_pieces_shows_what_reading_it_shows(
    given: list[tuple[str, dict[str, Any]]], ends: list[int], branches: bool
) -> None:
    lines = chain_of(given)
    if branches:
        lines += encoded(message("x", "1", "behind"), message("y", "x", "and on"))
    mirror = Mirror(LIVE, "s")
    for piece in cut(lines, ends):
        mirror.grow(piece)
    if not branches:
        assert mirror.wholes == 0
        agrees(mirror)
    elif not any(kind == "context_edit" for kind, _ in given):
        agrees(mirror)
    assert glanced(LIVE, cut(lines, ends)) == glanced(LIVE, [lines])
    read = pi.read(mirror.source)
    assert glanced(LIVE, [lines]).messages == len(plain(read.items))
    assert glanced(LIVE, [lines]).model == read.metadata.get("model", "")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange_to_follow(data: bytes) -> None:
    mirror = Mirror(LIVE, "s")
    mirror.grow(data.split(b"\n"))
    glanced(LIVE, [data.split(b"\n")])


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_a_real_session_is_followed_as_it_is_read() -> None:
    lines = CORPUS.read_bytes().split(b"\n")[:-1]
    mirror = Mirror(LIVE, "large-session")
    for piece in cut(lines, range(0, len(lines), 100)):
        mirror.grow(piece)
    read = pi.read(InMemorySource("large-session", {"large-session.jsonl": CORPUS.read_bytes()}))
    assert mirror.wholes == 0
    assert plain(mirror.records) == plain(read.items)
    seen = glanced(LIVE, [lines])
    assert (seen.messages, seen.model) == (len(plain(read.items)), read.metadata["model"])
    assert seen.title and seen.cwd == read.metadata["cwd"]
    with pytest.raises(UnsupportedError):
        mirror.append(user("x"))


# --- adding


def test_what_is_appended_is_chained_to_the_tip_as_version_3() -> None:
    mirror = Mirror(LIVE, "s")
    mirror.grow(lines_of(FULL))
    before = len(mirror.lines)
    records = [
        user([Text("new"), Image("image/png", "AAAA")], id=UUIDS[1], timestamp=NOW),
        assistant(
            [Thinking("hm", "sig"), ToolCall("c", "f", {"x": 1}, "g")],
            id=UUIDS[2],
            timestamp=NOW,
            model="p:m",
            usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3, cost=0.5),
        ),
        tool_result("c", "ok", id="no uuid", timestamp=NOW, tool_name="f", is_error=True),
    ]
    for record in records:
        (item,) = mirror.append(record)
        assert isinstance(item, Message)
        assert (item.role, item.content, item.timestamp) == (record.role, record.content, NOW)
    assert mirror.lines[:before] == lines_of(FULL)
    first, second, third = values(b"\n".join(mirror.lines[before:]))
    assert list(first) == ["type", "id", "parentId", "timestamp", "message"]
    assert (first["id"], first["parentId"]) == (UUIDS[1], "00000013")
    assert (second["id"], second["parentId"]) == (UUIDS[2], UUIDS[1])
    assert UUID(third["id"]) and third["parentId"] == UUIDS[2]
    assert (second["message"]["provider"], second["message"]["model"]) == ("p", "m")
    assert (third["message"]["toolName"], third["message"]["isError"]) == ("f", True)
    read = pi.read(mirror.source)
    assert not read.damage
    assert plain(view(read).messages)[-3:] == plain(mirror.view.messages)[-3:]
    agrees(mirror)


def test_the_first_entry_has_no_parent() -> None:
    mirror = followed()
    mirror.append(user("hi", id=UUIDS[1]))
    assert values(mirror.lines[-1])[0]["parentId"] is None


@pytest.mark.parametrize(("first", "kept"), [(1, ["a", "c"]), (2, ["c"]), (3, ["c"]), (4, [])])
def test_a_compaction_names_the_first_live_message_that_it_keeps(first: int, kept: list[str]) -> None:
    mirror = followed(SYSTEM, message("1", "0", "a"), message("2", "1", "b"), message("3", "2", "c"))
    mirror.append(Tombstone(deletes=(2,), timestamp=NOW))
    record = Compaction(first_kept_seq=first, summary="sum", tokens_before=9, read_files=("f",), id=UUIDS[1])
    (item,) = mirror.append(record)
    assert isinstance(item, Summary)
    assert (item.id, item.text, item.tokens_before) == (UUIDS[1], "sum", 9)
    assert item.read_files == ("f",)
    assert mirror.context == ["sum", *kept]
    agrees(mirror)


def test_what_we_delete_is_left_out_by_edits() -> None:
    mirror = followed(SYSTEM, message("1", "0", "a"), message("2", "1", "b"), message("3", "2", "c"))
    items = mirror.append(Tombstone(deletes=(1, 3), timestamp=NOW, id=UUIDS[1]))
    assert [one.ids for one in items if isinstance(one, HiddenMessages)] == [("1",), ("3",)]
    first, second = values(b"\n".join(mirror.lines[-2:]))
    assert (first["id"], first["parentId"]) == (UUIDS[1], "3")
    assert (second["parentId"], second["targetId"], second["replacement"]) == (UUIDS[1], "3", None)
    assert mirror.texts == ["b"]
    agrees(mirror)


def test_a_title_is_an_entry_that_says_nothing() -> None:
    mirror = followed(message("1", None, "a"))
    added = pi.encode_metadata(mirror.notes, mirror, {"name": "A title"})
    assert mirror.grow(added.lines) == []
    made = values(mirror.lines[-1])[0]
    assert (made["type"], made["parentId"], made["name"]) == ("session_info", "1", "A title")
    assert pi.read(mirror.source).metadata["name"] == "A title"
    assert glanced(LIVE, [mirror.lines]).title == "A title"
    mirror.append(user("b", id=UUIDS[1]))
    assert mirror.texts == ["a", "b"]
    agrees(mirror)


def test_an_event_needs_no_line() -> None:
    mirror = followed(message("1", None, "a"))
    assert mirror.append(Event(kind="turn_end")) == []
    assert len(mirror.lines) == 2


@pytest.mark.parametrize(
    "record",
    [
        user([File("a.pdf")]),
        user([Image(url="https://x")]),
        user([OtherBlock({"type": "hologram"})]),
        Tombstone(restores=(1,)),
        Rewind(to_seq=0),
        Compaction(first_kept_seq=1, summary=""),
        Meta(set={"agent": "other"}),
        Meta(set={"name": None}),
        Unknown(record_type="future"),
    ],
)
def test_what_a_session_cannot_hold_is_refused_with_a_hint(record: AnyRecord) -> None:
    mirror = followed(message("1", None, "a"))
    with pytest.raises(UnsupportedError) as refused:
        mirror.append(record)
    assert "import" in refused.value.hint
    assert len(mirror.lines) == 2


@pytest.mark.parametrize("version", [None, 1, 2, 4, "3"])
def test_a_file_of_another_version_is_not_added_to(version: Any) -> None:
    mirror = followed(message("1", None, "a"), header={**HEADER, "version": version})
    assert mirror.texts == ["a"]
    with pytest.raises(UnsupportedError) as refused:
        mirror.append(user("x", id=UUIDS[1]))
    assert "import" in refused.value.hint
    with pytest.raises(UnsupportedError):
        pi.encode_metadata(mirror.notes, mirror, {"name": "x"})


def test_nothing_is_chained_to_an_entry_without_an_id() -> None:
    mirror = followed({"type": "message", "message": {"role": "user", "content": "a"}})
    with pytest.raises(UnsupportedError):
        mirror.append(user("x", id=UUIDS[1]))


def test_what_has_no_id_and_says_nothing_is_gone_on_beside() -> None:
    future = b'{"type":"from-the-future","data":[1]}'
    for lines in ([], [message("1", None, "a")], [message("1", None, "a"), message("2", None, "b")]):
        mirror = grown(followed(*lines), future)
        shown = mirror.texts
        mirror.append(user("more", id=UUIDS[1]))
        assert mirror.texts == [*shown, "more"]
        assert mirror.lines[-2] == future
        grown(mirror, future, message("3", UUIDS[1], "and more"))
        assert mirror.texts == [*shown, "more", "and more"]
        agrees(mirror)


# --- names, beginning, listing


def test_names_of_files_are_ids() -> None:
    for name in (FULL.name, "s", "x" * 243, "漢字"):
        assert (
            pi.is_id(name)
            and pi.session_id_of(name, None) == name == pi.read(InMemorySource(name, {"a": b""})).session_id
        )
    for name in ("", ".x", "a/b", "a\\b", "a\0", "x" * 244, "s_part2"):
        assert not pi.is_id(name)


def test_a_session_begins_with_its_header() -> None:
    asked: list[str] = []

    def once(stem: str) -> bool:
        asked.append(stem)
        return len(asked) == 1

    made = pi.build_session({"cwd": "/home", "model": "m", "agent": "main"}, "2026-01-01T00:00:00.120Z", once)
    assert made.session_id == made.stem == asked[1] != asked[0]
    (header,) = values(b"\n".join(made.edit.lines))
    assert header == HEADER | {"id": header["id"], "timestamp": "2026-01-01T00:00:00.120Z", "cwd": "/home"}
    assert made.stem == f"2026-01-01T00-00-00-120Z_{header['id']}" and pi.is_id(made.stem)
    assert pi.recognises(f"{made.stem}.jsonl", made.edit.lines[0])
    mirror = Mirror(LIVE, made.session_id)
    mirror.grow(made.edit.lines)
    mirror.append(user("hello", id=UUIDS[1]))
    agrees(mirror)


def test_a_session_may_begin_with_a_title() -> None:
    made = pi.build_session({"name": "A title"}, NOW, lambda stem: False)
    mirror = Mirror(LIVE, made.session_id)
    mirror.grow(made.edit.lines)
    mirror.append(user("hello", id=UUIDS[1]))
    assert pi.read(mirror.source).metadata == {"cwd": "/", "name": "A title"}
    agrees(mirror)


@pytest.mark.parametrize("facts", [{"agent": "other"}, {"sender": "bob"}, {"key": "k"}])
def test_a_session_with_facts_that_have_no_place_is_not_begun(facts: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        pi.build_session(facts, NOW, lambda stem: False)


def test_a_listing_shows_what_reading_finds() -> None:
    lines, read = lines_of(FULL), pi.read(FULL)
    seen = glanced(LIVE, [lines])
    header = values(lines[0])[0]
    assert replace(seen, state={}) == ListingScan(
        messages=len(plain(read.items)),
        title=read.metadata["name"],
        created="2026-01-05T09:00:00.000Z",
        last="2026-01-05T09:00:18.000Z",
        model=read.metadata["model"],
        cwd=read.metadata["cwd"],
        program_id=header["id"],
        parent="old",
    )
    for place in range(len(lines)):
        assert glanced(LIVE, cut(lines, [place])) == seen
    assert glanced(LIVE, [lines_of(OLD)]).title == "one"


def test_a_listing_is_entitled_by_what_the_user_said_first() -> None:
    bash = {"type": "message", **linked("1", None), "message": {"role": "bashExecution", "command": "ls"}}
    lines = encoded(HEADER, bash, message("2", "1", "\n first \nsecond"), message("3", "2", "third"))
    assert glanced(LIVE, [lines]).title == "first  second"
    assert glanced(LIVE, [lines]).messages == 3


def test_damage_counts_in_no_listing() -> None:
    lines = lines_of(FULL)
    for at, line in enumerate(lines):
        for junk in (line[:-1], b"\0" * len(line), b"\xff" + line):
            broken = [*lines[:at], junk, *lines[at + 1 :]]
            followed = pi.read_all(placed(broken), Mirror(LIVE, "s").transcript)
            assert glanced(LIVE, [broken]).messages == len(plain(followed.items))
