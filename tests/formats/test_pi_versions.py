"""What pi's versions write: damage, migrations, edits, programs' messages, and what each understands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from everlog.errors import UnsupportedError
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ForeignSession, InMemorySource, ListingScan, Match
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.importer import import_session
from everlog.model import PROGRAM, Compaction, Event, Message, Metadata, Tombstone, Usage, assistant, tool_result, user
from everlog.session import Store
from everlog.stores.in_memory import InMemoryStore
from everlog.testing.format_suite import FormatConformance
from tests.formats.mirror_checks import Mirror, glanced
from tests.formats.round_trips import golden, numbered, values, view
from tests.formats.test_pi_tail import HEADER, NOW, SYSTEM, UUIDS, edit, encoded, followed, grown, linked, message

LIVE: ForeignFormat = pi
CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
V1_HEADER = {"type": "session", "id": "s", "timestamp": "2025-01-01T00:00:00.000Z", "cwd": "/w"}


def source_of(*entries: Any, name: str = "s") -> InMemorySource:
    return InMemorySource(name, {f"{name}.jsonl": b"".join(line + b"\n" for line in encoded(*entries))})


def said(text: str, second: int, role: str = "user") -> dict[str, Any]:
    """An entry of version 1."""
    content = [{"type": "text", "text": text}]
    timestamp = f"2025-01-01T00:00:{second:02d}.000Z"
    return {"type": "message", "timestamp": timestamp, "message": {"role": role, "content": content}}


def reached(lines: list[bytes]) -> list[str]:
    """The texts that pi sends: the path from the last entry, cut at a parent that is missing."""
    entries = [value for line in lines for value in values(line) if isinstance(value, dict)]
    by_id = {entry["id"]: entry for entry in entries if entry.get("type") != "session" and "id" in entry}
    path: list[dict[str, Any]] = []
    current: dict[str, Any] | None = entries[-1]
    while current:
        path.append(current)
        current = by_id.get(current["parentId"]) if current["parentId"] else None
    messages = [entry["message"] for entry in reversed(path) if entry["type"] == "message"]
    return [block["text"] for one in messages for block in one["content"]]


# --- identity


def test_a_session_is_named_by_its_header_wherever_its_file_is() -> None:
    entries = [HEADER, said("a", 1), message("1", None, "b")]
    here, there = pi.read(source_of(*entries)), pi.read(source_of(*entries, name="moved"))
    assert here.session_id == there.session_id == "s"
    assert [item.id for item in here.items] == [item.id for item in there.items]
    assert pi.read(source_of(said("a", 1), name="torn")).session_id == "torn"
    assert pi.resume_command(ListingScan(), "/x/s.jsonl") == ("pi", "--session", "/x/s.jsonl")


def migrated(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of version 1 as pi rewrites them."""
    made: list[dict[str, Any]] = []
    for number, entry in enumerate(entries[1:], 1):
        made.append({**entry, "id": f"{number:08x}", "parentId": made[-1]["id"] if made else None})
    return [{**entries[0], "version": 3}, *made]


def test_a_file_of_version_1_and_its_migrated_self_are_one_session() -> None:
    old = [V1_HEADER, said("a", 1), said("b", 2, "assistant"), said("c", 3)]
    new = [*migrated(old), message("d", "00000003", "more")]
    before, after = pi.read(source_of(*old)), pi.read(source_of(*new))
    assert before.session_id == after.session_id
    prints = [[pi.fingerprint(one) for one in view(read).messages] for read in (before, after)]
    assert prints[1][:3] == prints[0]
    with Store(InMemoryStore()) as store:
        first = import_session(store.port, pi, before)
        again = import_session(store.port, pi, after)
        assert again.id == first.id
        texts = [one.text for one in store.session(first.id or "").messages()]
        assert texts == ["a", "b", "c", "more"]


# --- entry kinds


def test_a_system_message_is_the_prompt_and_not_conversation() -> None:
    mirror = followed(SYSTEM, message("1", "0", "a"))
    assert mirror.texts == ["a"]
    kinds = [item.kind for item in pi.read(mirror.source).items if isinstance(item, Event)]
    assert kinds == ["pi.session", "pi.record"]
    assert glanced(LIVE, [mirror.lines]).title == "a"


def test_what_a_program_put_in_is_not_what_the_user_said() -> None:
    bash = {"type": "message", **linked("1", None), "message": {"role": "bashExecution", "command": "ls"}}
    note = {"type": "custom_message", **linked("2", "1"), "customType": "note", "content": "note"}
    summary = {"type": "branch_summary", **linked("3", "2"), "fromId": "1", "summary": "tried"}
    mirror = followed(bash, note, summary, message("4", "3", "typed"))
    assert [one.sender for one in mirror.view.messages] == [PROGRAM, PROGRAM, PROGRAM, None]
    assert glanced(LIVE, [mirror.lines]).title == "typed"


def test_a_message_of_a_program_is_appended_as_a_custom_message() -> None:
    mirror = followed(message("1", None, "a"))
    mirror.append(user("the date changed", id=UUIDS[1], sender=PROGRAM, timestamp=NOW))
    assert values(mirror.lines[-1])[0]["type"] == "custom_message"
    assert [(one.text, one.sender) for one in mirror.view.messages] == [("a", None), ("the date changed", PROGRAM)]


def test_a_new_text_takes_the_place_of_the_edited_one() -> None:
    result = {
        "role": "toolResult",
        "toolCallId": "c",
        "toolName": "read",
        "content": [{"type": "text", "text": "long"}],
    }
    entries = [
        message("1", None, "a"), {"type": "message", **linked("2", "1"), "message": result},
        edit("3", "2", "2", {"content": [{"type": "text", "text": "short"}]}), edit("4", "3", "1", {"content": "A"}),
        edit("5", "4", "2", {"content": "shorter"}), message("6", "5", "b"),
    ]  # fmt: skip
    mirror = followed(*entries)
    assert sorted(mirror.texts) == ["A", "b", "shorter"]
    edited = next(one for one in mirror.view.messages if one.text == "shorter")
    assert (edited.role, edited.tool_call_id, edited.tool_name) == ("toolResult", "c", "read")
    grown(mirror, message("7", "6", "c"), SYSTEM | {"id": "8", "parentId": "7"})
    mirror.records.append(Message(role="user", content=(), seq=99))  # so that seqs differ from ids
    target = mirror.records.index(edited) + 1
    lines = pi.encode_record(mirror.notes, mirror, Tombstone(deletes=(target,), timestamp=NOW)).lines
    assert values(lines[0])[0]["targetId"] == "2"


# --- titles


def test_a_title_is_the_last_name_and_without_one_the_first_prompt() -> None:
    def named(number: int, name: str) -> dict[str, Any]:
        return {"type": "session_info", **linked(f"n{number}", None), "name": name}

    lines = encoded(HEADER, message("1", None, "the first\nprompt"))
    assert glanced(LIVE, [lines]).title == "the first prompt"
    names = encoded(named(1, " a name "), named(2, ""))
    assert glanced(LIVE, [lines, names[:1]]).title == "a name"
    assert glanced(LIVE, [lines, names[:1], names[1:]]).title == "the first prompt"
    assert glanced(LIVE, [names[:1], names[1:], lines]).title == "the first prompt"


def test_a_title_made_from_a_prompt_is_not_written_back_as_a_name() -> None:
    read = pi.read(source_of(HEADER, message("1", None, "the first\nprompt")))
    assert read.metadata["name"] == "the first prompt"
    records = [one for one in numbered(read.items) if not isinstance(one, Tombstone)]  # type: ignore[arg-type]
    files = pi.write(Metadata(id="x", title=read.metadata["name"]), records).files
    assert [one["type"] for one in values(next(iter(files.values())))] == ["session", "message"]


# --- what is appended


def test_an_answer_carries_the_provider_and_a_result_the_name_of_its_tool() -> None:
    call = {"type": "toolCall", "id": "c", "name": "read", "arguments": {}}
    answer = {"role": "assistant", "content": [call], "api": "openai-completions", "provider": "p", "model": "m"}
    mirror = followed(message("1", None, "a"), {"type": "message", **linked("2", "1"), "message": answer})
    mirror.append(tool_result("c", "ok", id=UUIDS[1], timestamp=NOW))
    mirror.append(assistant("fine", id=UUIDS[2], timestamp=NOW))
    mirror.append(assistant("fine", id=UUIDS[3], timestamp=NOW, model="other:m:7b"))
    result, same, other = (value["message"] for value in values(b"\n".join(mirror.lines[-3:])))
    assert result["toolName"] == "read"
    assert (same["provider"], same["model"], same["api"]) == ("p", "m", "openai-completions")
    assert (other["provider"], other["model"], other["api"]) == ("other", "m:7b", "")
    chosen = {"type": "model_change", **linked("3", UUIDS[3]), "provider": "q", "modelId": "n"}
    grown(mirror, chosen)
    mirror.append(assistant("fine", id=UUIDS[4], timestamp=NOW, model="n"))
    assert values(mirror.lines[-1])[0]["message"]["provider"] == "q"


def test_a_deletion_is_refused_where_the_installed_version_may_not_understand_it() -> None:
    mirror = followed(message("1", None, "a"), message("2", "1", "b", "assistant"))
    with pytest.raises(UnsupportedError) as refused:
        mirror.append(Tombstone(deletes=(1,), timestamp=NOW))
    assert "0.87" in str(refused.value) and "import" in refused.value.hint
    grown(mirror, {**SYSTEM, "parentId": "2"})
    mirror.append(Tombstone(deletes=(1,), timestamp=NOW))
    assert mirror.texts == ["b"]


@pytest.mark.parametrize("torn", [b'{"type":"message","id":"2","par', None])
def test_history_before_a_missing_parent_stays_reachable(torn: bytes | None) -> None:
    lost = [] if torn is None else [torn]
    mirror = followed(message("1", None, "a"), *lost, message("3", "2", "c"), message("4", "3", "d"))
    assert (mirror.texts, reached(mirror.lines)) == (["a", "c", "d"], ["c", "d"])
    mirror.append(user("e", id=UUIDS[1], timestamp=NOW))
    assert reached(mirror.lines) == ["a", "c", "d", "e"] == mirror.texts
    assert "gaps" not in mirror.notes
    count = len(mirror.lines)
    mirror.append(user("f", id=UUIDS[2], timestamp=NOW))
    assert len(mirror.lines) == count + 1
    assert reached(mirror.lines) == mirror.texts == [one.text for one in view(pi.read(mirror.source)).messages]
    fresh = Mirror(LIVE, "s")
    fresh.grow(mirror.lines)
    assert fresh.texts == mirror.texts and "gaps" not in fresh.notes


def test_an_append_continues_from_an_entry_that_exists() -> None:
    mirror = followed(message("1", None, "a"), message("2", "1", "b"))
    grown(mirror, b'{"type":"message","id":"3","parentId":"2","mes', b"\0\0\0", b"")
    mirror.append(user("c", id=UUIDS[1], timestamp=NOW))
    assert values(mirror.lines[-1])[0]["parentId"] == "2"
    assert reached(mirror.lines) == ["a", "b", "c"]


def test_losses_are_named() -> None:
    records = numbered([user("a", sender="bob"), assistant("b", model="m", usage=Usage(input_tokens=1))])
    losses = pi.write(Metadata(id="x", agent="crab", sender="ann", title="A title"), records).losses
    assert losses == ("agent: 1", "sender: 1", "sender of a message: 1")


# --- recognition


def test_a_session_is_recognised_by_its_header_or_its_entries() -> None:
    head = encoded(HEADER, message("1", None, "a"))
    rest = encoded(message("1", None, "a"), message("2", "1", "b"))
    name = "2026-01-05T09-00-00-000Z_0198f3c2.jsonl"
    assert pi.recognises("x.jsonl", b"\n".join(head)) is Match.SURE
    long_header = encoded({**HEADER, "cwd": "x" * 5_000_000})[0]
    assert pi.recognises("x.jsonl", long_header + b"\n") is Match.SURE
    for first in (
        b"",
        b"\0" * 300,
        b'{"type":"session","ver',
        b"{",
        b'{"type":"session","id":5,"cwd":"/"}',
        b"x" * 70_000,
    ):
        assert pi.recognises("x.jsonl", b"\n".join([first, *rest])) is Match.POSSIBLE, first
    for first in (b"\0" * 300, b'{"type":"session","ver'):
        assert pi.recognises(name, first) is Match.POSSIBLE
        assert pi.recognises("x.jsonl", first) is Match.NO
    odd = encoded(HEADER, {"type": "message", **linked("1", None), "message": {"role": "user", "content": ["x"]}})
    assert pi.recognises("x.jsonl", b"\n".join(odd)) is Match.SURE
    assert pi.recognises("x.jsonl", encoded({**HEADER, "version": "3"})[0]) is Match.SURE
    assert pi.recognises("x.json", head[0]) is Match.NO


OTHERS: list[Any] = [
    {"type": "session", "version": 4, "id": "s", "timestamp": NOW, "cwd": "/w"},  # OpenClaw
    {"type": "user", "uuid": "u", "parentUuid": None, "sessionId": "s", "message": {"role": "user", "content": "x"}},
    {"type": "summary", "summary": "x", "leafUuid": "u"},
    {"type": "system", "subtype": "init", "cwd": "/w", "session_id": "s", "uuid": "u"},
    {"timestamp": NOW, "type": "session_meta", "payload": {"id": "s"}},
    {"sessionId": "s", "projectHash": "p", "startTime": NOW, "kind": "main"},
    {"role": "user", "message": {"content": [{"type": "text", "text": "x"}]}},
    {"agent": "crab", "created_by": "user", "created_at": NOW, "title": "", "uptime_secs": 0},
    {"type": "session.start", "data": {"sessionId": "s"}, "id": "i", "timestamp": NOW, "parentId": None},
    {"id": "c", "title": "t", "mapping": {}, "current_node": "n"},
]


@pytest.mark.parametrize("line", OTHERS)
def test_lines_of_other_programs_are_neither_pis_nor_cerseis(line: Any) -> None:
    for format in (pi, cersei):
        assert format.recognises("x.jsonl", json.dumps(line).encode() + b"\n") is Match.NO


def test_cersei_is_told_from_claude_code_in_one_folder() -> None:
    entry = {
        "type": "user", "uuid": "u", "timestamp": NOW, "session_id": "s", "cwd": "/w",
        "message": {"role": "user", "content": "x"}, "is_sidechain": False,
    }  # fmt: skip
    odd = {**entry, "message": {"role": "user", "content": ["x"]}}
    good, strange = (json.dumps(one).encode() for one in (entry, odd))
    assert cersei.recognises("s.jsonl", strange + b"\n" + good) is Match.SURE
    for first in (b"", b"\0" * 99, b'{"type":"us', b'{"type":"hook"}', b'{"type":"user","message":5}'):
        assert cersei.recognises("s.jsonl", first + b"\n" + good) >= Match.POSSIBLE, first
    bare = b'{"role":"user","content":["x"]}\n'
    assert cersei.recognises("s.jsonl", bare + b'{"role":"user","content":"x"}\n') is Match.POSSIBLE
    assert cersei.recognises("s.jsonl", bare + b"\n".join(encoded(HEADER, SYSTEM))) is Match.NO
    assert {"session_id"} <= cersei.KEYS and {"parentId"} <= pi.KEYS
    assert cersei.resume_command(ListingScan(program_id="other"), "/p/S.jsonl") == ("abstract", "--resume", "S")


# --- real files


def read_real(path: str) -> ForeignSession:
    file = CORPUS / path
    if not file.exists():
        pytest.skip("the corpus is not here")
    return pi.read(InMemorySource(file.stem, {file.name: file.read_bytes()}))


@pytest.mark.parametrize(("version", "systems"), [("0.73.1", 0), ("0.87.1", 1)])
def test_real_sessions_of_two_versions_have_their_counts_and_title(version: str, systems: int) -> None:
    read = read_real(f"pi-versions/v{version}.jsonl")
    assert not read.damage
    assert read.metadata["name"] == "Please tell me: how many lines does pebbles.txt have?"
    roles = [one.role for one in view(read).messages]
    assert [roles.count(role) for role in ("user", "assistant", "toolResult")] == [2, 3, 1]
    assert sum(len(one.tool_calls) for one in view(read).messages) == 1
    kinds = [one.data["message"]["role"] for one in read.items if isinstance(one, Event) and "message" in one.data]
    assert kinds == ["system"] * systems
    with Store(InMemoryStore()) as store:
        result = import_session(store.port, pi, read)
        assert not result.lost and result.records_in == read.line_count


@pytest.mark.parametrize(("version", "understood"), [("0.73.1", False), ("0.87.1", True)])
def test_a_real_session_says_whether_a_deletion_is_understood(version: str, understood: bool) -> None:
    read_real(f"pi-versions/v{version}.jsonl")
    mirror = Mirror(LIVE, version)
    mirror.grow((CORPUS / f"pi-versions/v{version}.jsonl").read_bytes().split(b"\n")[:-1])
    record = Compaction(first_kept_seq=3, summary="sum", timestamp=NOW)
    mirror.append(record)
    if understood:
        assert mirror.append(Tombstone(deletes=(1,), timestamp=NOW))
    else:
        with pytest.raises(UnsupportedError):
            mirror.append(Tombstone(deletes=(1,), timestamp=NOW))


class _Real(FormatConformance):
    """Import, live view and listing of real files."""

    format: ClassVar[Any] = pi


@pytest.mark.parametrize("path", ["pi/large-session.jsonl", "pi-versions/v0.73.1.jsonl", "pi-versions/v0.87.1.jsonl"])
def test_real_sessions_agree_at_random_lines(path: str) -> None:
    read_real(path)
    file = CORPUS / path
    beginning = b"\n".join(file.read_bytes().split(b"\n")[:300]) + b"\n"  # enough, and read hundreds of times
    _Real.sessions = (InMemorySource(file.stem, {file.name: beginning}),)
    _Real().test_import_live_view_and_listing_agree_at_every_line()


def test_the_golden_session_agrees_with_itself_whatever_its_name() -> None:
    full = golden("pi", "2026-01-05T09-00-00-000Z_0198f3c2-7b6e-7d10-8a55-1f2e3d4c5b6a")
    data = next(iter(full.files.values()))
    moved = pi.read(InMemorySource("x", {"x.jsonl": data}))
    assert [one.id for one in moved.items] == [one.id for one in pi.read(full).items]
