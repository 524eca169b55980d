"""Encoding of our records as lines at the end of a transcript that Claude Code can resume.

New entries are linked to the end of the conversation. Open tool calls are answered with an error
first: the conversation could not continue after them otherwise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from everlog.errors import UnsupportedError
from everlog.interop.formats.claude.conversation_tail import ConversationTail
from everlog.interop.formats.claude.entry_builder import UNSIGNED, ChainStart, EntryBuilder, is_uuid, safe_call_id
from everlog.interop.formats.format_types import FileEdit, MirrorLog, NewSession, TailState, derive_id
from everlog.interop.formats.losses import REFUSAL, Losses
from everlog.log.fold import fold
from everlog.log.line_codec import replace_surrogates
from everlog.log.tool_pairs import make_missing_result
from everlog.model import AnyRecord, Compaction, Event, Message, Rewind, Tombstone, ToolCall

_AGENT_ID = re.compile(r"[A-Za-z0-9_-]+")
_SUBAGENT_INFIX = ":agent-"
_IMPORT_HINT = "import the session (everlog import) and change it there"
_DEFAULTS = {"agent": "main", "sender": "user"}
# Metadata of a new session that is written, found in its records, or counted by the store.
_ACCEPTED_KEYS = frozenset({"id", "name", "model", "source", "cwd", "chat", "current", "generations"})


def is_id(text: str) -> bool:
    """Return whether a text can be the id of a session or of a subagent session."""
    session_id, infix, agent_id = text.partition(_SUBAGENT_INFIX)
    return is_uuid(session_id) and (not infix or _AGENT_ID.fullmatch(agent_id) is not None)


def name_fields(name: str) -> dict[str, str]:
    """Return the id of a session that a caller names: a UUID, derived if the name is none."""
    return {"id": name if is_uuid(name) else derive_id("session", name)}


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Return a new session: an empty file, or one with only a title."""
    for key, value in metadata.items():
        if value and key not in _ACCEPTED_KEYS and value != _DEFAULTS.get(key):
            raise UnsupportedError(f"Claude Code sessions cannot store {key}", hint=f"create the session without {key}")
    session_id = metadata.get("id") or str(uuid4())
    while is_taken(session_id):
        session_id = str(uuid4())
    title = metadata.get("name")
    return NewSession(session_id, session_id, _title_edit(session_id, title) if title else FileEdit())


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Return the edit for a new title. Raises UnsupportedError for any other key."""
    for key in changes:
        if key != "name":
            raise UnsupportedError(f"Claude Code sessions cannot store {key}", hint=_IMPORT_HINT)
    return _title_edit(_session_id(log), changes["name"]) if changes else FileEdit()


def _title_edit(session_id: str, title: object) -> FileEdit:
    name = title.strip() if isinstance(title, str) else ""
    if not name:
        raise UnsupportedError("a Claude Code title cannot be empty or removed", hint="set a non-empty name")
    line = {"type": "custom-title", "customTitle": name, "sessionId": session_id}
    return FileEdit(lines=(_encode(line),))


def encode_record(state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses = REFUSAL) -> FileEdit:
    """Return the edit that appends a record."""
    if isinstance(record, Event):
        return FileEdit()
    if log.transcript.branch:
        raise UnsupportedError(
            "a side chain in the transcript of another session cannot be continued", hint=_IMPORT_HINT
        )
    encoder = _RecordEncoder(state, log, losses)
    if isinstance(record, Message):
        return FileEdit(lines=tuple(map(_encode, encoder.encode_message(record))))
    if isinstance(record, Compaction):
        return FileEdit(lines=tuple(map(_encode, encoder.encode_compaction(record))))
    if isinstance(record, Rewind):
        hint = "import the session (everlog import) and rewind it there"
        raise UnsupportedError("Claude Code transcripts are append-only: they cannot be rewound", hint=hint)
    if isinstance(record, Tombstone):
        hint = "import the session (everlog import) and delete the message there"
        raise UnsupportedError("Claude Code transcripts are append-only: messages cannot be deleted", hint=hint)
    description = f"a record of type {record.record_type}"
    raise UnsupportedError(f"Claude Code sessions cannot store {description}", hint=_IMPORT_HINT)


def encode_answers(state: TailState, log: MirrorLog) -> FileEdit:
    """Return the edit that answers the open tool calls."""
    encoder = _RecordEncoder(state, log, REFUSAL)
    encoder.answer_open_calls()
    return FileEdit(lines=tuple(map(_encode, encoder.lines)))


def _session_id(log: MirrorLog) -> str:
    return log.transcript.session_id.partition(_SUBAGENT_INFIX)[0]


def _encode(value: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(value))


class _RecordEncoder:
    """Encoder of one record and of the entries that must precede it."""

    def __init__(self, state: TailState, log: MirrorLog, losses: Losses) -> None:
        self.log = log
        self.losses = losses
        self.tail = msgspec.convert(state, ConversationTail)
        self.builder = EntryBuilder(log.metadata, self._chain_start())
        self.lines: list[dict[str, Any]] = []

    def _chain_start(self) -> ChainStart:
        tail, agent_id = self.tail, self.log.transcript.session_id.partition(_SUBAGENT_INFIX)[2]
        cwd = self.log.metadata.extra.get("cwd")
        return ChainStart(
            session_id=_session_id(self.log),
            leaf=tail.leaf or None,
            used_uuids=frozenset([*tail.recent, *tail.auxiliary]),
            timestamp=tail.timestamp,
            cwd=tail.cwd or (cwd if isinstance(cwd, str) else ""),
            version=tail.version,
            git_branch=tail.git_branch,
            is_subagent=bool(agent_id) or tail.is_subagent is True,
            agent_id=agent_id or (tail.agent_id if tail.is_subagent else ""),
        )

    def encode_message(self, message: Message) -> Sequence[dict[str, Any]]:
        """Return the entries for a message."""
        caller_uuid = None
        if message.role == "toolResult":
            call = self.tail.open_calls.get(safe_call_id(message.tool_call_id or ""))
            if call is None:
                loss = "result of a call that is not in the log"
                self.losses.refuse(loss, f"no open tool call {message.tool_call_id} for this result", hint=_IMPORT_HINT)
                return ()
            caller_uuid = call[1]
        else:
            self.answer_open_calls()
        self._add_message(message, caller_uuid)
        return self.lines

    def encode_compaction(self, record: Compaction) -> Sequence[dict[str, Any]]:
        """Return a boundary and its summary."""
        if not record.summary.strip():
            hint = "provide a summary text"
            self.losses.refuse("empty summary", "a compaction summary cannot be empty", hint=hint)
            return ()
        kept_uuids = self._kept_uuids(record)
        answers = self.answer_open_calls()
        kept_uuids += [uuid for caller, uuid in answers if caller in kept_uuids]
        self.lines += self.builder.build_compaction(record, kept_uuids, self._position(record.id))
        return self.lines

    def _kept_uuids(self, record: Compaction) -> list[str]:
        """Return the uuids of the messages that a compaction keeps in the context."""
        view = fold(self.log.records_from(record.first_kept_seq))
        ids = [
            self.log.foreign_id(message)
            for message in view.messages
            if record.first_kept_seq <= message.seq and not 0 < record.seq <= message.seq
        ]
        return list(dict.fromkeys(foreign_id.partition(":")[0] for foreign_id in ids))

    def answer_open_calls(self) -> list[tuple[str, str]]:
        """Answer open calls; return pairs of the uuids of caller and answer."""
        answers: list[tuple[str, str]] = []
        for call_id, (tool, caller_uuid) in self.tail.open_calls.items():
            uuid = self._add_message(make_missing_result(ToolCall(call_id, tool, {})), caller_uuid)
            answers.append((caller_uuid, uuid))
        return answers

    def _add_message(self, message: Message, caller_uuid: str | None) -> str:
        refused, hint = Counter[str](), "omit it, or import the session"
        entry = self.builder.build_message(message, caller_uuid, self._position(message.id), refused)
        del refused[UNSIGNED]  # not needed again, and the API would reject it
        if refused:
            self.losses.refuse("", f"Claude Code sessions cannot store {', '.join(refused)}", hint=hint)
        if entry is None:
            loss = "message without any writable content"
            self.losses.refuse(loss, "Claude Code sessions cannot store a message without content", hint=hint)
            return ""
        self.lines.append(entry)
        uuid: str = entry["uuid"]
        return uuid

    def _position(self, record_id: str) -> str:
        """Return the seed for the uuid of a record whose id is not a UUID; stable if possible."""
        return record_id or f"{self.builder.leaf}"  # one record follows each leaf
