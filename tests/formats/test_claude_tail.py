"""Claude Code's transcripts, used where they lie: followed as they grow, and added to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    ConversationItem,
    ForeignSession,
    HiddenMessages,
    InMemorySource,
    Item,
    Line,
    ListingScan,
    Summary,
    TailResult,
    TailState,
    TranscriptInfo,
    split_lines,
)
from everlog.model import AnyRecord, Message, Metadata, user
from tests.examples import examples
from tests.formats.claude_session import ID, Session, encode, hidden, read, shown, uuid
from tests.formats.native import through_native
from tests.formats.test_claude_round_trip import transcripts

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "claude-code"
WHERE = TranscriptInfo(ID)
dialect: ForeignFormat = claude


class Mirror:
    """What a store keeps of a transcript, without one."""

    def __init__(self, data: bytes = b"", name: str = ID, *, step: int = 1000) -> None:
        self.transcript = TranscriptInfo(name)
        self.metadata = Metadata(id=name)
        self.data = b""
        self.notes: TailState = {}
        self.items: dict[str, Message | Summary] = {}
        self.hidden: HiddenMessages | None = None
        self.wholes = 0  # how often the whole file had to be read
        lines = data.splitlines(keepends=True)
        for first in range(0, len(lines), step):
            self.grow(b"".join(lines[first : first + step]))

    def grow(self, data: bytes) -> Sequence[ConversationItem]:
        new = [Line(len(self.data) + start, line, ended) for start, line, ended in split_lines(data)]
        self.data += data
        found = dialect.read_tail(self.notes, new, self.transcript)
        if found is None:
            self.wholes += 1
            self.hidden = None
            found = dialect.read_all(split_lines(self.data), self.transcript)
        for item in found.items:
            if isinstance(item, HiddenMessages):
                self.hidden = item
            else:
                self.items.setdefault(item.id, item)
        self.notes = json.loads(json.dumps(found.state))
        return found.items

    def append(self, record: AnyRecord) -> Sequence[ConversationItem]:
        added = dialect.encode_record(self.notes, self, record)
        return self.grow(b"".join(line + b"\n" for line in added.lines))

    @property
    def away(self) -> set[str]:
        return set(self.hidden.ids) if self.hidden else set()

    def records(self) -> list[AnyRecord]:
        items: list[Item] = [*self.items.values(), *([self.hidden] if self.hidden else [])]
        return through_native(ForeignSession(session_id=ID, items=tuple(items)))

    def record(self, seq: int) -> AnyRecord:
        return self.records()[seq - 1]

    def records_from(self, seq: int) -> Sequence[AnyRecord]:
        return self.records()[seq - 1 :]

    def foreign_id(self, record: AnyRecord) -> str:
        return record.id


def bare(items: Sequence[Item]) -> list[ConversationItem]:
    """Items without the lines they came from, and without usage, which stands elsewhere."""
    made: list[ConversationItem] = []
    for item in items:
        if isinstance(item, Message):
            made.append(replace(item, line=b"", usage=None))
        elif isinstance(item, Summary):
            made.append(replace(item, extra={}))
        elif isinstance(item, HiddenMessages):
            made.append(item)
    return made


def used(items: Sequence[Item]) -> list[int]:
    """The sums of all that was counted."""
    counts = [item.usage for item in items if isinstance(item, Message) and item.usage]
    return [
        sum(one.input_tokens for one in counts),
        sum(one.output_tokens for one in counts),
        sum(one.cache_read_tokens for one in counts),
        sum(one.total_tokens for one in counts),
    ]


def follow(data: bytes, notes: TailState | None = None) -> TailResult:
    found = claude.read_tail(notes or {}, split_lines(data), WHERE)
    assert found is not None
    return found


def objects(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def conversation() -> Session:
    session = Session()
    session.meta("queue-operation", operation="enqueue", timestamp="2025-12-31T00:00:00.000Z")
    session.add("attachment", attachment={"type": "prompt_snapshot", "text": '"uuid":"x"' * 50})
    session.user("one")
    session.call("t1", response="r")
    session.call("t2", response="r")
    session.result("t2", "second", parent=uuid(4))
    session.add("progress", parent=uuid(3), data={"message": {"type": "user"}})
    session.result("t1", "first", parent=uuid(6))
    session.answer("two")
    session.user("a note", isMeta=True)
    session.compact("summary")
    session.user("three")
    session.answer("four")
    return session


# --- following ------------------------------------------------------------------------------


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
steps = st.one_of(
    st.tuples(st.sampled_from(["user", "answer", "note", "compact"]), texts),
    st.tuples(st.just("tools"), st.permutations(range(3))),
    st.tuples(st.sampled_from(["progress", "attachment", "system", "aside", "left"]), texts),
    st.tuples(st.just("meta"), st.sampled_from(["mode", "last-prompt", "ai-title", "tag"])),
    st.tuples(st.just("bytes"), st.sampled_from([b"", b"{", b"\0\0", b"[1]", b'"uuid"', b"\xff"])),
)


def linear(given_steps: Sequence[tuple[str, Any]]) -> list[bytes]:
    """The lines of a conversation in which nobody went back."""
    session, lines = Session(), list[bytes]()
    for kind, what in given_steps:
        before = len(session.objects)
        if kind == "user":
            session.user(what)
        elif kind == "answer":
            session.answer(what)
        elif kind == "note":
            session.user(what, isMeta=True)
        elif kind == "compact":
            session.compact(what)
        elif kind == "tools":
            add_tools(session, what)
        elif kind == "aside":
            leaf = session.leaf
            begun = any(one["type"] in ("user", "assistant") for one in session.objects)
            session.user(what, isSidechain=begun)
            session.leaf = leaf if begun else session.leaf
        elif kind == "left":
            leaf = session.leaf
            session.add("progress", data={"type": what})
            session.leaf = leaf
        elif kind == "meta":
            session.meta(what, lastPrompt="x")
        elif kind == "bytes":
            lines.append(what)
        else:
            session.add(kind, data={"type": what})
        lines += [encode([one])[:-1] for one in session.objects[before:]]
    return lines


def add_tools(session: Session, order: Sequence[int]) -> None:
    response = f"r{session.count}"
    calls = [session.call(f"{response}-{number}", response=response) for number in range(3)]
    hook = session.add("progress", parent=calls[0], data={})
    for number in order:
        parent = hook if number == 0 else calls[number]
        session.result(f"{response}-{number}", f"of {number}", parent=parent)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(steps, max_size=12), st.data())
def test_lines_that_come_in_any_pieces_give_the_same_items_and_notes(
    given_steps: list[tuple[str, Any]], data: st.DataObject
) -> None:
    lines = [Line(0, line) for line in linear(given_steps)]
    at_once = claude.read_tail({}, lines, WHERE)
    assert at_once is not None
    cuts = data.draw(st.lists(st.integers(0, len(lines)), max_size=5))
    notes: TailState = {}
    items: list[ConversationItem] = []
    for first, last in pairwise(sorted([0, len(lines), *cuts])):
        given_notes = json.dumps(notes)
        found = claude.read_tail(notes, lines[first:last], WHERE)
        assert found is not None
        assert json.dumps(notes) == given_notes
        items += found.items
        notes = json.loads(json.dumps(found.state))
    assert items == at_once.items
    assert notes == at_once.state


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(steps, max_size=12))
def test_what_is_followed_is_what_is_read(given_steps: list[tuple[str, Any]]) -> None:
    data = b"".join(line + b"\n" for line in linear(given_steps))
    made, found, whole = read(data), follow(data), claude.read_all(split_lines(data), WHERE)
    assert bare(found.items) == bare(made.items) == bare(whole.items)
    assert found.items == whole.items
    assert used(found.items) == used(made.items)
    assert found.state == whole.state


# From the last record, from the n-th one, from one that is missing, from none.
parents: st.SearchStrategy[str | int | None] = st.one_of(
    *[st.just("last")] * 5, st.integers(0, 11), st.just("nobody"), st.none()
)
said = st.tuples(st.sampled_from(["user", "answer", "call", "result", "note", "progress"]), parents)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(said, max_size=12), st.integers(1, 3))
def test_whatever_hangs_from_whatever_the_mirror_shows_what_is_read(
    records: list[tuple[str, str | int | None]], step: int
) -> None:
    session = Session()
    calls: list[str] = []
    for kind, parent in records:
        if isinstance(parent, int):
            parent = uuid(parent % session.count + 1) if session.count else None
        keys: dict[str, Any] = {} if parent == "last" else {"parent": parent}
        if kind == "call":
            calls.append(f"t{session.count}")
            session.call(calls[-1], **keys)
        elif kind == "result" and calls:
            session.result(calls.pop(), "result", **keys)
        elif kind == "answer":
            session.answer("answer", **keys)
        elif kind == "progress":
            session.add("progress", **keys)
        else:
            session.user("text", isMeta=kind == "note", **keys)
    made, mirror = read(session.data()), Mirror(session.data(), step=step)
    assert set(mirror.items) == {item.id for item in made.items if isinstance(item, Message)}
    assert mirror.away == hidden(made)


def test_a_conversation_with_parallel_tools_and_a_compaction_is_followed_line_by_line() -> None:
    session = conversation()
    mirror = Mirror(session.data(), step=1)
    assert mirror.wholes == 0
    made = read(session.data())
    assert bare(list(mirror.items.values())) == bare(made.items)
    (summary,) = [item for item in mirror.items.values() if isinstance(item, Summary)]
    assert (summary.text, summary.first_kept, summary.tokens_before) == ("summary", None, 99)
    results = [one for one in mirror.items.values() if isinstance(one, Message) and one.tool_name]
    assert [(one.tool_call_id, one.tool_name) for one in results] == [("t2", "Bash"), ("t1", "Bash")]


def test_a_note_to_the_model_at_the_end_hides_nothing() -> None:
    session = Session()
    first = session.user("one")
    session.add("progress", data={})
    session.answer("two", parent=first)
    session.user("a note", isMeta=True)
    assert shown(session.read()) == ["one", "two", "a note"]
    session.compact("summary")
    session.user("another note", isMeta=True)
    made = session.read()
    assert shown(made) == ["one", "two", "a note", "another note"]
    assert [item.text for item in made.items if isinstance(item, Summary)] == ["summary"]
    mirror = Mirror(session.data(), step=1)
    assert mirror.wholes == 0
    assert bare(list(mirror.items.values())) == bare(made.items)


def test_a_branch_is_not_told_from_its_lines_alone() -> None:
    session = Session()
    session.user("one")
    fork = session.answer("two")
    session.user("left")
    mirror = Mirror(session.data())
    session.user("three", parent=fork)
    session.answer("four")
    mirror.grow(encode(session.objects[-2:]))
    assert mirror.wholes == 1
    assert mirror.away == {uuid(3)}
    assert set(mirror.items) == {uuid(number) for number in range(1, 6)}
    session.user("five")
    mirror.grow(encode(session.objects[-1:]))
    assert mirror.wholes == 1


@pytest.mark.parametrize(
    "keys",
    [{"parent": "nobody"}, {"parent": None}, {"uuid": uuid(2)}, {"isSidechain": False}],
    ids=["missing parent", "second root", "second occurrence", "no side chain"],
)
def test_what_is_doubtful_is_not_followed(keys: dict[str, Any]) -> None:
    session = Session()
    inner = "isSidechain" in keys
    session.user("one", isSidechain=inner)
    session.answer("two", isSidechain=inner)
    notes = follow(session.data()).state
    session.user("three", **keys)
    assert claude.read_tail(notes, split_lines(encode(session.objects[-1:])), WHERE) is None


def test_a_boundary_elsewhere_or_with_preserved_records_is_not_followed() -> None:
    for keys in ({"logicalParentUuid": "nobody"}, {"compactMetadata": preserving(uuid(1))}):
        session = Session()
        session.user("one")
        session.answer("two")
        notes = follow(session.data()).state
        session.compact("both")
        session.objects[2].update(keys)
        assert claude.read_tail(notes, split_lines(encode(session.objects[2:])), WHERE) is None
    found = claude.read_all(split_lines(session.data()), WHERE)
    (summary,) = [item for item in found.items if isinstance(item, Summary)]
    assert summary.first_kept == uuid(1)
    assert bare(found.items) == bare(session.read().items)


def preserving(head: str) -> dict[str, Any]:
    return {"preTokens": 7, "preservedSegment": {"headUuid": head, "tailUuid": head}}


def test_notes_of_another_kind_are_no_notes() -> None:
    assert claude.read_tail({"near": 7}, split_lines(conversation().data()), WHERE) is None


def test_notes_stay_small() -> None:
    session = Session()
    session.user("go")
    for number in range(300):
        session.call(f"t{number}", response="r")
        session.add("progress", data={})
    for number in range(300):
        session.result(f"t{number}", "x" * 1000)
    mirror = Mirror(session.data(), step=7)
    assert len(json.dumps(mirror.notes)) < 16_000
    assert bare(list(mirror.items.values())) == bare(session.read().items)


def test_usage_is_counted_once_however_its_records_come() -> None:
    session = Session()
    session.user("go")
    for number, output in enumerate((3, 50, 40)):
        usage = {"input_tokens": 10, "output_tokens": output, "cache_read_input_tokens": 7}
        session.call(f"t{number}", response="r", usage=usage)
    session.call("t9", response="r", requestId="another", usage={"output_tokens": 1})
    for step in (1, 2, 9):
        items = list(Mirror(session.data(), step=step).items.values())
        assert used(items) == used(session.read().items) == [10, 51, 7, 68]
        usages = [item.usage.output_tokens for item in items[1:] if isinstance(item, Message) and item.usage]
        assert usages == [3, 47, 1]


# --- damage ---------------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None)
@given(transcripts)
def test_of_any_transcript_the_same_is_followed_and_read(found: list[dict[str, Any]]) -> None:
    data = encode(found)
    assert bare(claude.read_all(split_lines(data), WHERE).items) == bare(read(data).items)
    claude.read_tail({}, split_lines(data), WHERE)


@settings(max_examples=examples(100), deadline=None)
@given(transcripts, st.integers(0, 2000), st.binary(max_size=5))
def test_whatever_the_bytes_are_the_same_messages_are_found(
    found: list[dict[str, Any]], place: int, noise: bytes
) -> None:
    data = encode(found)
    data = data[:place] + noise + data[place + len(noise) :]
    said = [item.id for item in claude.read_all(split_lines(data), WHERE).items]
    assert said == [item.id for item in bare(read(data).items)]
    claude.read_tail({}, split_lines(data), WHERE)
    claude.scan_listing(ListingScan(), split_lines(data), TranscriptInfo(""))


def test_damaged_lines_are_passed_over_and_records_glued_to_them_are_found() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    first, second = session.data().splitlines(keepends=True)
    torn = b'{"type":"api-request-blob","sessionId":"x","blob":"' + b"a" * 50
    for between in (b"", b"not json\n", b"\0\0\n\n", torn, b"\xff\n", b"[" * 9000 + b"\n"):
        found = follow(first + between + second)
        assert [item.text for item in found.items if isinstance(item, Message)] == ["one", "two"]
        assert found.items == claude.read_all(split_lines(first + between + second), WHERE).items


@pytest.mark.parametrize("broken", [b"\\ud83d", b"\\udc00 x", b"\xed\xa0\xbd", b"\xff"])
def test_a_lone_surrogate_is_replaced_and_the_session_goes_on(broken: bytes) -> None:
    session = Session()
    session.user("cut here: @")
    data = session.data().replace(b"@", broken)
    mirror = Mirror(data)
    assert bare(list(mirror.items.values())) == bare(read(data).items)
    mirror.append(user("and \ud83d on", id=uuid(9)))
    assert shown(read(mirror.data))[1] == "and \N{REPLACEMENT CHARACTER} on"


def test_of_equal_uuids_the_first_that_was_seen_stays_and_none_is_shown_twice() -> None:
    session = Session()
    session.user("first text")
    session.answer("hi")
    session.objects.append({**session.objects[0], "message": {"content": "second text"}})
    mirror = Mirror(session.data(), step=1)
    assert mirror.wholes == 1
    assert list(mirror.items) == [uuid(1), uuid(2)]
    again = Mirror(session.data())
    assert bare(list(again.items.values())) == bare(session.read().items)


def test_content_that_is_nested_too_deeply_is_no_message() -> None:
    session = Session()
    session.user("one")
    deep: Any = "x"
    for _ in range(160):
        deep = [deep]
    session.answer({"type": "tool_use", "id": "t", "name": "x", "input": {"a": deep}})
    found = claude.read_all(split_lines(session.data()), WHERE)
    assert bare(found.items) == bare(session.read().items)


def test_a_large_result_has_the_text_of_its_file() -> None:
    session = Session()
    session.user("go")
    session.call("t1")
    session.result("t1", "<persisted-output>\nsaved to: /x/tool-results/b1.txt\nPreview")
    files = {"tool-results/b1.txt": b"all of it"}
    for where, text in ((TranscriptInfo(ID, None, files.get), "all of it"), (WHERE, "<persisted-output>")):
        for found in (
            claude.read_tail({}, split_lines(session.data()), where),
            claude.read_all(split_lines(session.data()), where),
        ):
            assert found is not None and isinstance(found.items[2], Message)
            assert found.items[2].text.startswith(text)


# --- subagents ------------------------------------------------------------------------------


def agent_session() -> Session:
    session = Session()
    for add in (session.user, session.answer):
        add("inner", isSidechain=True, agentId="a1")
    return session


def test_the_transcript_of_an_agent_is_followed_and_added_to() -> None:
    name = f"{ID}:agent-a1"
    mirror = Mirror(agent_session().data(), name, step=1)
    assert (len(mirror.items), mirror.wholes) == (2, 0)
    mirror.append(user("go on", id=uuid(9)))
    made = objects(mirror.data)[-1]
    assert (made["isSidechain"], made["agentId"], made["sessionId"]) == (True, "a1", ID)
    assert made["parentUuid"] == uuid(2)
    fresh = Mirror(name=name)
    fresh.append(user("begin", id=uuid(1)))
    made = objects(fresh.data)[-1]
    assert (made["isSidechain"], made["agentId"], made["sessionId"]) == (True, "a1", ID)


def test_side_chains_in_a_main_transcript_are_passed_over() -> None:
    session = Session()
    session.user("one")
    leaf = session.call("t1")
    session.user("inner", parent=None, isSidechain=True)
    session.answer("inner answer", isSidechain=True)
    session.result("t1", "done", parent=leaf)
    mirror = Mirror(session.data(), step=1)
    assert mirror.wholes == 0
    assert bare(list(mirror.items.values())) == bare(session.read().items)


def test_ids_are_uuids_and_those_of_agents() -> None:
    assert claude.is_id(ID) and claude.is_id(f"{ID}:agent-acompact-f_0")
    for other in ("", "x", ID.upper(), f"{ID}:agent-", f"{ID}:agent-a/b", f"{ID}x", f"{ID}\n"):
        assert not claude.is_id(other)
    assert claude.session_id_of(ID, None) == ID


# --- real files -----------------------------------------------------------------------------


def real() -> list[Path]:
    return sorted(CORPUS.rglob("*.jsonl")) if CORPUS.is_dir() else []


@pytest.mark.parametrize("path", real(), ids=lambda path: path.stem)
def test_a_real_transcript_is_followed_as_it_is_read(path: Path) -> None:
    data = path.read_bytes()
    made = claude.read(InMemorySource(path.stem, {path.name: data}))
    where = TranscriptInfo(made.session_id)
    found = claude.read_all(split_lines(data), where)
    assert bare(found.items) == bare(made.items)
    assert used(found.items) == used(made.items)
    mirror = Mirror(data, path.stem, step=50)
    assert list(mirror.items.values()) == [one for one in found.items if not isinstance(one, HiddenMessages)]
    assert mirror.notes == found.state
    seen = claude.scan_listing(ListingScan(), split_lines(data), TranscriptInfo(""))
    assert seen.messages == sum(isinstance(item, Message) for item in made.items)
    assert seen.title == made.metadata["name"]
    mirror.append(user("next", id=uuid(1)))
    assert shown(claude.read(InMemorySource(path.stem, {path.name: mirror.data})))[-1] == "next"
