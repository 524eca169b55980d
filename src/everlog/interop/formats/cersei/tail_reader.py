"""Incremental reading of Cersei's transcripts in place, and creation of sessions.

A tombstone counts wherever it is, even before the entry it deletes. So short hashes of the latest
tombstones whose entry was not among the same lines are kept in the state: reading a file from its
beginning needs none of them. An entry is identified by its uuid; a repeated uuid is the same entry.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any
from uuid import uuid4

from everlog.errors import ConflictError, UnsupportedError
from everlog.interop.formats.cersei.entries import member_id, read_messages
from everlog.interop.formats.format_types import HiddenMessages, Line, Summary, derive_id
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.interop.formats.live_format import (
    ConversationItem,
    FileEdit,
    MetadataLocation,
    MirrorLog,
    NewSession,
    TailResult,
    TailState,
    TranscriptInfo,
)

METADATA_LOCATION: MetadataLocation = ""
TOTAL_BYTES = 200_000_000
LINE_BYTES = 0
IMPORT_HINT = "import the session (everlog sessions import) and continue there"

_MAX_PENDING = 200  # tombstones in the state; entries of older ones have been read
_HASH_LENGTH = 8  # characters
_MAX_TEXT = 1024  # characters of a text in the state
_MAX_STEM_BYTES = 255 - len("_part2.jsonl")
_PART_SUFFIX = re.compile(r"_part[0-9]+\Z")
_ACCEPTED_KEYS = frozenset(("key", "model", "source", "cwd", "chat", "current", "generations"))


def is_id(text: str) -> bool:
    """Return whether a text can be the file name of a transcript, without its extension."""
    return (
        0 < len(text.encode("utf-8", "surrogatepass")) <= _MAX_STEM_BYTES
        and not text.startswith(".")
        and not any(character in text for character in "/\\\0")
        and _PART_SUFFIX.search(text) is None
    )


def session_id_of(stem: str, meta_bytes: bytes | None) -> str:
    """Return the id of a session, which is the name of its file."""
    return stem


# --- reading --------------------------------------------------------------------------------


def read_tail(state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
    """Return the items of new lines."""
    fold = _TailFold(state, transcript.session_id)
    for line in lines:
        fold.add(line.data)
    return fold.result()


def read_all(lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
    """Return the items of a whole session."""
    return read_tail({}, lines, transcript)


class _TailFold:
    """A fold over the lines of a file. Keys of its state:

    lines, messages   their counts so far
    widest            largest number of messages in one entry
    session, cwd      of the first entry that has it; of the last
    user              uuid of the last user entry
    bare              whether the first message was a bare one
    gone              hashes of deleted uuids whose entry may not have been read yet
    """

    def __init__(self, state: TailState, session_id: str) -> None:
        self.session_id = session_id
        self.state = dict(state)
        self.items: list[ConversationItem] = []
        hashes = text_of(state, "gone")
        starts = range(0, len(hashes), _HASH_LENGTH)
        # An ordered set.
        self.pending = {hashes[start : start + _HASH_LENGTH]: None for start in starts}
        self.seen_uuids: set[str] = set()  # of entries in these lines
        self.deleted_uuids: set[str] = set()  # by tombstones in these lines

    def add(self, data: bytes) -> None:
        self.state["lines"] = self.state.get("lines", 0) + 1
        value = parse_object(data)[0]
        if value is None:
            return
        timestamp, kind = text_of(value, "timestamp"), value.get("type")
        self._set_text("session", text_of(value, "session_id"), first=True)
        self._set_text("cwd", text_of(value, "cwd"))
        if kind == "tombstone":
            self._delete(text_of(value, "deleted_uuid"), timestamp)
        elif kind == "summary":
            self._add_summary(value, timestamp)
        else:
            self._add_messages(value, timestamp)

    def result(self) -> TailResult:
        items = [item for item in self.items if not (isinstance(item, Summary) and item.id in self.deleted_uuids)]
        state = {key: value for key, value in self.state.items() if key != "gone"}
        if self.pending:
            state["gone"] = "".join(list(self.pending)[-_MAX_PENDING:])
        return TailResult(items, state)

    def _set_text(self, key: str, text: str, *, first: bool = False) -> None:
        if text and len(text) <= _MAX_TEXT and not (first and key in self.state):
            self.state[key] = text

    def _entry_id(self, value: Mapping[str, Any]) -> str:
        return text_of(value, "uuid") or derive_id(self.session_id, self.state["lines"])

    def _delete(self, uuid: str, timestamp: str) -> None:
        if not uuid:
            return
        if uuid not in self.seen_uuids:
            self.pending[_short_hash(uuid)] = None
        self.deleted_uuids.add(uuid)
        # Its number of messages is unknown, but at most that of the widest entry.
        self._hide("tombstone", uuid, self.state.get("widest", 1), timestamp)

    def _hide(self, cause: str, uuid: str, count: int, timestamp: str) -> None:
        ids = tuple(member_id(uuid, number) for number in range(count))
        marker_id = derive_id(self.session_id, f"{cause} {uuid}")
        self.items.append(HiddenMessages(id=marker_id, ids=ids, timestamp=timestamp, extra={"target": uuid}))

    def _add_summary(self, value: Mapping[str, Any], timestamp: str) -> None:
        entry_id, text = self._entry_id(value), text_of(value, "summary")
        if text and _short_hash(entry_id) not in self.pending:
            self.items.append(Summary(id=entry_id, text=text, timestamp=timestamp))
            self.seen_uuids.add(entry_id)

    def _add_messages(self, value: Mapping[str, Any], timestamp: str) -> None:
        uuid = text_of(value, "uuid")
        messages = read_messages(value, self._entry_id(value), timestamp)
        if not messages:
            return
        self.items += messages
        state, count = self.state, len(messages)
        state.setdefault("bare", "type" not in value)
        state["messages"] = state.get("messages", 0) + count
        if count > state.get("widest", 1):
            state["widest"] = count
        if messages[0].role != "assistant":
            self._set_text("user", uuid)
        if self.pending and uuid and (short_hash := _short_hash(uuid)) in self.pending:
            del self.pending[short_hash]
            self._hide("late", uuid, count, timestamp)
        self.seen_uuids.add(uuid)


def _short_hash(uuid: str) -> str:
    return b64encode(sha256(uuid.encode()).digest()[: _HASH_LENGTH * 3 // 4]).decode()


# --- metadata -------------------------------------------------------------------------------


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Raise UnsupportedError for any change: the format cannot store metadata."""
    for key in changes:
        raise UnsupportedError(f"Cersei transcripts cannot store {key!r}", hint=IMPORT_HINT)
    return FileEdit()


def name_fields(name: str) -> dict[str, str]:
    """Return the id of a session that a caller names: the name of its file."""
    if not is_id(name):
        raise UnsupportedError(f"not usable as a file name: {name[:60]!r}", hint="choose another")
    return {"key": name}


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Return a new session with an empty file; its id is the key, if that is possible."""
    for key, value in metadata.items():
        default = {"agent": "main", "sender": "user"}.get(key)
        if key not in _ACCEPTED_KEYS and value not in (None, "", (), [], {}, default):
            raise UnsupportedError(f"Cersei transcripts cannot store {key!r}", hint=IMPORT_HINT)
    key_id = metadata.get("key")
    if isinstance(key_id, str) and is_id(key_id):
        if is_taken(key_id):
            raise ConflictError(f"session {key_id!r} already exists")
        return NewSession(key_id, key_id, FileEdit())
    stem = str(uuid4())
    while is_taken(stem):
        stem = str(uuid4())
    return NewSession(stem, stem, FileEdit())
