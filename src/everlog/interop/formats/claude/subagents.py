"""Reading a session with the sessions of its subagents, and the tool calls that started them.

A subagent has a transcript of its own in the folder of the session or, in older versions, is a side
chain in the transcript of the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.claude.reader import NAME, TranscriptReader
from everlog.interop.formats.claude.records import texts_of
from everlog.interop.formats.format_types import ForeignSession, Item, Line, Source, TranscriptInfo, extra_field
from everlog.interop.formats.session_reader import Detail, read_session
from everlog.model import Event, Message


def read(source: Source, transcript: TranscriptInfo, parts: Sequence[tuple[str, Iterable[Line]]]) -> ForeignSession:
    """Read a session with the sessions of its subagents."""
    reader = _make_reader(transcript)
    session = read_session(reader, parts, metadata={"source": NAME})
    if reader.facts.parent:  # the file of a subagent
        return replace(session, session_id=f"{reader.facts.parent}/{next(iter(reader.side_entries))}")
    return replace(session, children=tuple(_read_children(source, transcript, reader, session)))


def _make_reader(transcript: TranscriptInfo) -> TranscriptReader:
    return TranscriptReader(transcript, Detail.FULL, whole=True)


def _read_children(
    source: Source, transcript: TranscriptInfo, reader: TranscriptReader, session: ForeignSession
) -> Iterator[ForeignSession]:
    session_id, paths = session.session_id, source.paths()[1:]
    if not reader.side_entries and not any("/subagents/" in path for path in paths):
        return
    agent_calls, prompt_calls = _find_calls(session.items)
    for branch, entries in reader.side_entries.items():
        child = _make_reader(transcript._replace(session_id=f"{session_id}/{branch}"))
        child.load(entries)
        prompt = next((text for _, value, _, _ in entries for text in texts_of(value or {})), "")
        calls = prompt_calls.get(prompt.strip(), [])
        call_id = agent_calls.get(branch.removeprefix("agent-")) or (calls.pop(0) if calls else None)
        parent = {"session": session_id} | ({"toolCallId": call_id} if call_id else {})
        yield read_session(child, (), metadata={"source": NAME, "parent": parent})
    for path in paths:
        folder, _, name = path.rpartition("/")
        if "subagents" in folder.split("/") and name.endswith(".jsonl"):
            inner_path = path[path.index("subagents/") : -len(".jsonl")]
            child = _make_reader(transcript._replace(session_id=f"{session_id}/{inner_path}"))
            child.known_uuids = reader.last_places
            parent = _read_parent(source, path, agent_calls) | {"session": session_id}
            yield read_session(child, [(path, source.lines(path))], metadata={"source": NAME, "parent": parent})


def _read_parent(source: Source, path: str, agent_calls: dict[str, str]) -> dict[str, Any]:
    """Return what is known of the tool call that started a subagent with a file."""
    metadata: dict[str, Any] = {}
    meta_path = path.removesuffix(".jsonl") + ".meta.json"
    if meta_path in source.paths():
        try:
            decoded = msgspec.json.decode(source.read(meta_path))
        except (ValueError, RecursionError):
            decoded = None
        metadata = dict(decoded) if isinstance(decoded, dict) else {}
    agent_id = path.rpartition("/agent-")[2].removesuffix(".jsonl")
    call_id = metadata.pop("toolUseId", None) or agent_calls.get(agent_id)
    return {**metadata, "toolCallId": call_id} if isinstance(call_id, str) else metadata


def _find_calls(items: Iterable[Item]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the calls that started subagents, by agent id and by prompt, as far as the records tell."""
    agent_calls: dict[str, str] = {}
    prompt_calls: dict[str, list[str]] = {}
    for item in items:
        data, call_id = None, None
        if isinstance(item, Message):
            if b'"toolUseResult":' in item.line and b'"agentId":' in item.line:
                data, call_id = (extra_field(item, NAME) or {}).get("toolUseResult"), item.tool_call_id
            for call in item.tool_calls:
                prompt = call.arguments.get("prompt")
                if isinstance(prompt, str):
                    prompt_calls.setdefault(prompt.strip(), []).append(call.id)
        elif isinstance(item, Event):
            data, call_id = item.data.get("data"), item.data.get("parentToolUseID")
        agent_id = data.get("agentId") if isinstance(data, dict) else None
        if isinstance(agent_id, str) and isinstance(call_id, str):
            agent_calls.setdefault(agent_id, call_id)
    return agent_calls, prompt_calls
