"""Records of ours, as lines at the end of a transcript that Claude Code resumes.

They hang from the end of the conversation. Calls that nobody answered are answered before it goes
on, as an error: it could not go on behind them otherwise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from everlog.errors import UnsupportedError
from everlog.interop.formats.claude.entry_builder import (
    UNSIGNED,
    NewRecords,
    Start,
    call_id,
    is_uuid,
)
from everlog.interop.formats.claude.tail_state import Tip
from everlog.interop.formats.live_format import Added, Begun, Log, Notes
from everlog.log.fold import fold
from everlog.log.line_codec import clean
from everlog.log.tool_pairs import closing
from everlog.model import AnyRecord, Compaction, Event, Message, Rewind, Tombstone, ToolCall

_AGENT = re.compile(r"[A-Za-z0-9_-]+")
_INNER = ":agent-"
_IMPORT = "import the session, and do it there"
_DEFAULTS = {"agent": "main", "sender": "user"}
# Facts of a new session that are written, found again in its records, or the store's own count.
_PASSED = frozenset({"name", "model", "source", "cwd", "chat", "current", "generations"})


def is_id(text: str) -> bool:
    """Whether a text can be the id of a session, or of that of an agent that it asked."""
    session, inner, agent = text.partition(_INNER)
    return is_uuid(session) and (not inner or _AGENT.fullmatch(agent) is not None)


def name_of(stem: str, beside: bytes | None) -> str:
    """The id of the session in a file of this name."""
    return stem


def begin(facts: Mapping[str, Any], now: str, taken: Callable[[str], bool]) -> Begun:
    """A new session: a file without lines, but for a title."""
    for key, value in facts.items():
        if value and key not in _PASSED and value != _DEFAULTS.get(key):
            raise UnsupportedError(
                f"a session of Claude Code has no {key}", hint=f"begin it without {key}"
            )
    name = str(uuid4())
    while taken(name):
        name = str(uuid4())
    title = facts.get("name")
    return Begun(name, name, _titled(name, title) if title else Added())


def change(notes: Notes, log: Log, changes: Mapping[str, Any]) -> Added:
    """A new title; nothing else can be changed."""
    for key in changes:
        if key != "name":
            raise UnsupportedError(f"{key} has no place in a session of Claude Code", hint=_IMPORT)
    return _titled(_session(log), changes["name"]) if changes else Added()


def _titled(session: str, title: object) -> Added:
    name = title.strip() if isinstance(title, str) else ""
    if not name:
        raise UnsupportedError(
            "a title of Claude Code cannot be empty or taken back", hint="give it a name"
        )
    line = {"type": "custom-title", "customTitle": name, "sessionId": session}
    return Added(lines=(_encode(line),))


def extend(notes: Notes, log: Log, record: AnyRecord) -> Added:
    """The lines of a record."""
    if isinstance(record, Event):
        return Added()
    if isinstance(record, Message):
        return Added(lines=tuple(map(_encode, _Extending(notes, log).message(record))))
    if isinstance(record, Compaction):
        return Added(lines=tuple(map(_encode, _Extending(notes, log).compaction(record))))
    if isinstance(record, Rewind):
        hint = "import the session (everlog sessions import) and rewind it there"
        raise UnsupportedError(
            "a transcript of Claude Code only grows: nothing is rewound", hint=hint
        )
    if isinstance(record, Tombstone):
        hint = "import the session and delete the message there"
        raise UnsupportedError(
            "a transcript of Claude Code only grows: nothing is deleted", hint=hint
        )
    what = f"a record of the kind {record.record_type}"
    raise UnsupportedError(f"{what} has no place in a session of Claude Code", hint=_IMPORT)


def _session(log: Log) -> str:
    return log.where.name.partition(_INNER)[0]


def _encode(value: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(clean(value))


class _Extending:
    """One record that is added, with what must stand before it."""

    def __init__(self, notes: Notes, log: Log) -> None:
        self.log = log
        self.tip = msgspec.convert(notes, Tip)
        self.new = NewRecords(log.metadata, self._start())
        self.lines: list[dict[str, Any]] = []

    def _start(self) -> Start:
        tip, agent = self.tip, self.log.where.name.partition(_INNER)[2]
        cwd = self.log.metadata.extra.get("cwd")
        return Start(
            session=_session(self.log),
            leaf=tip.leaf or None,
            used=frozenset([*tip.near, *tip.aside]),
            at=tip.at,
            cwd=tip.cwd or (cwd if isinstance(cwd, str) else ""),
            version=tip.version,
            branch=tip.branch,
            inner=bool(agent) or tip.inner is True,
            agent=agent or (tip.agent if tip.inner else ""),
        )

    def message(self, message: Message) -> Sequence[dict[str, Any]]:
        """What was said."""
        caller = None
        if message.role == "toolResult":
            call = self.tip.calls.get(call_id(message.tool_call_id or ""))
            if call is None:
                raise UnsupportedError(
                    f"no call {message.tool_call_id} waits for a result", hint=_IMPORT
                )
            caller = call[1]
        else:
            self._close_calls()
        self._add(message, caller)
        return self.lines

    def compaction(self, record: Compaction) -> Sequence[dict[str, Any]]:
        """A boundary, and the summary behind it."""
        if not record.summary.strip():
            raise UnsupportedError(
                "a summary without text cannot be written", hint="give it a text"
            )
        kept = self._kept(record)
        closed = self._close_calls()
        kept += [uuid for caller, uuid in closed if caller in kept]
        self.lines += self.new.compaction(record, kept, self._place(record.id))
        return self.lines

    def _kept(self, record: Compaction) -> list[str]:
        """The uuids of the messages that a compaction leaves in the context."""
        view = fold(self.log.since(record.first_kept_seq))
        ids = [
            self.log.theirs(one)
            for one in view.messages
            if record.first_kept_seq <= one.seq and not 0 < record.seq <= one.seq
        ]
        return list(dict.fromkeys(one.partition(":")[0] for one in ids))

    def _close_calls(self) -> list[tuple[str, str]]:
        """Answer what waits for a result: the uuids of the calls' records and of the answers."""
        closed: list[tuple[str, str]] = []
        for name, (tool, caller) in self.tip.calls.items():
            uuid = self._add(closing(ToolCall(name, tool, {})), caller)
            closed.append((caller, uuid))
        return closed

    def _add(self, message: Message, caller: str | None) -> str:
        lost: Counter[str] = Counter()
        made = self.new.message(message, caller, self._place(message.id), lost)
        del lost[UNSIGNED]  # nobody needs it again, and the API would refuse it
        if lost or made is None:
            what = ", ".join(lost) or "a message without content"
            raise UnsupportedError(
                f"a session of Claude Code cannot hold {what}",
                hint="leave it out, or import the session",
            )
        self.lines.append(made)
        uuid: str = made["uuid"]
        return uuid

    def _place(self, name: str) -> str:
        """What the uuid of a record is made of if its id is none: the same each time, if it can."""
        return name or f"{self.new.leaf}"  # there is one behind each leaf
