"""The reader of pi's sessions.

The last entry is the leaf, and the path from it to the root is the conversation. A parent that
follows its child, or that is missing, is replaced by the previous entry. An entry that was written
twice counts once. A file that grows at its leaf is read line by line; where an entry starts a
branch, or refers to entries that the state does not have, the whole file is read.

A message that an edit replaces is hidden, and its new text is a message at the place of the edit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.format_types import HiddenMessages, Item, derive_id
from everlog.interop.formats.jsonl import Row, attach_preserved, event_kind, text_of
from everlog.interop.formats.line_reader import LineReader
from everlog.interop.formats.pi.entries import EDIT_KEY, NAME, SESSION_EVENT, read_message, read_summary, shows_edits
from everlog.interop.formats.pi.new_entries import FIRST_KEPT_KEY, LINK_TYPE
from everlog.interop.formats.session_reader import Detail, NeedsWholeFileError
from everlog.model import Message

_MAX_ID = 64  # characters of an id in the state
_MAX_TITLE = 80  # characters of a title made from a message
_MAX_PAIRS = 32  # of a mapping in the state
_ITEM_TYPES = ("message", "compaction", "branch_summary", "custom_message", "context_edit")
_CONTROL_CHARACTERS = dict.fromkeys((*range(32), 127), " ")


class _Block(msgspec.Struct, gc=False):
    pass


class _MessageHead(msgspec.Struct, gc=False):
    role: Literal["user", "assistant", "toolResult"]
    content: str | list[_Block] | None = None
    model: str = ""


class _EntryHead(msgspec.Struct, gc=False):
    """What a listing needs of most lines."""

    type: Literal["message"]
    message: _MessageHead
    timestamp: str = ""


_decode_head = msgspec.json.Decoder(_EntryHead).decode


class _Entry(msgspec.Struct, gc=False):
    row: Row
    item_id: str
    parent: int  # its index among the entries; -1: none
    message: Message | None  # that it adds to the conversation


class PiReader(LineReader):
    """The reader of one session. Its state has these keys, each only if it has a value:

    lines      number of lines so far
    session    the id in the header
    version    of the header, once it was read; 1 if it has none
    tip        id of the last entry, empty if it has none; missing before the first entry
    gaps       parents that are missing on the branch: each with the entry that takes its place
    edited     whether a message was replaced; deletions need no state
    edits      whether a version that knows `system` messages, and so edits, wrote to the file
    provider, model, api       of the last answer, or of the model chosen since
    calls      ids of the last answer's tool calls, with their names
    first      the title from the first user message, where another one hides it
    """

    NAME = NAME

    def _load_facts(self) -> None:
        self._entries: list[_Entry] = []  # that are in the queue, between what is an item already
        self._indexes: dict[str, int] = {}  # id → index of the last entry that has it
        self._parsed: list[int] = []  # number of entries before each object, as version 1 numbers them
        self._answer: dict[str, Any] | None = None  # the last one, not noted yet
        facts = self.facts
        self._name = facts.title if "first" in facts.state else ""
        self._first_text = text_of(facts.state, "first") if self._name else facts.title

    # --- facts

    def _scan_line(self, data: bytes) -> None:
        try:
            entry = _decode_head(data)
        except (ValueError, RecursionError):
            entry = None
        if entry is not None and (self._first_text or entry.message.role != "user"):
            self._count_messages(1, entry.timestamp, entry.message.model if entry.message.role == "assistant" else "")
        else:
            self._scan_parsed(data)

    def _scan_value(self, value: dict[str, Any]) -> None:
        if not self._read_header(value):
            row = Row("", 0, 0, b"", True, value)
            self._note_entry(value, read_message(row, "", text_of(value, "timestamp"), without_line=True))

    def _read_header(self, value: Mapping[str, Any]) -> bool:
        """Return whether this is the header."""
        if value.get("type") != "session" or "version" in self._state:
            return False
        version, session, created = value.get("version"), text_of(value, "id"), text_of(value, "timestamp")
        self._state["version"] = version if type(version) is int else 1
        if session:
            self._state["session"] = session if len(session) <= _MAX_ID else derive_id("session", session)
        parent = text_of(value, "parentSession").rpartition("/")[2].removesuffix(".jsonl").rpartition("_")[2]
        self.facts = replace(
            self.facts,
            program_id=session,
            cwd=text_of(value, "cwd"),
            created=created if epoch_ms(created) is not None else "",
            parent=parent,
        )
        return True

    def _note_entry(self, value: Mapping[str, Any], message: Message | None) -> None:
        kind = value.get("type")
        if kind == "session_info":
            self._name = text_of(value, "name").strip()
        elif kind == "model_change":
            self._model = text_of(value, "modelId") or self._model
        elif kind == "context_edit" and _new_content(value) is not None:
            self._count += 1
        if message is not None:
            self._count_messages(1, text_of(value, "timestamp"), message.model or "")
            if not self._first_text and message.role == "user" and message.sender is None:
                self._first_text = title_from(message)

    def _facts(self) -> dict[str, Any]:
        self._note_answer()
        self._note("first", self._first_text if self._name else None)
        return {"title": self._name or self._first_text}

    # --- lines

    def _add_value(self, row: Row, value: dict[str, Any]) -> None:
        self._parsed.append(len(self._entries))
        is_header = self._read_header(value)
        entry_id = "" if is_header else text_of(value, "id")
        same_id = self._indexes.get(entry_id) if entry_id else None
        is_repeated = same_id is not None and self._entries[same_id].row.value == value
        item_id = self._unique_id(entry_id, row)
        is_link = value.get("customType") == LINK_TYPE
        if is_link:
            self._note("gaps", [gap for gap in self._state.get("gaps", ()) if gap[0] != entry_id] or None)
        if is_header or is_repeated or is_link:  # none of them is the leaf
            if self._is_full:
                self._queue.append(self._event(row, item_id, SESSION_EVENT if is_header else _kind_of(value)))
            return
        # An import compares times: an entry without one has the same in every import.
        time = text_of(value, "timestamp") or self.facts.created or timestamp(0)
        message = read_message(row, item_id, time, without_line=not self._is_full)
        if not self.whole and not self._extends_tip(value, entry_id):
            raise NeedsWholeFileError
        self._note_entry(value, message)
        entry = _Entry(row, item_id, self._parent_of(value), message)
        self._queue.append(entry)
        self._entries.append(entry)
        if entry_id:
            self._indexes[entry_id] = len(self._entries) - 1
        if entry_id or "parentId" in value or value.get("type") in _ITEM_TYPES:
            self._state["tip"] = entry_id if len(entry_id) <= _MAX_ID else ""
        self._note_program(value)

    def _extends_tip(self, value: Mapping[str, Any], entry_id: str) -> bool:
        """Return whether an entry is the child of the previous one."""
        tip, parent = self._state.get("tip"), value.get("parentId", ...)
        if tip is None:
            return True
        if parent is None or (entry_id and entry_id == tip):
            return False
        return not isinstance(parent, str) or not parent or parent == tip

    def _parent_of(self, value: Mapping[str, Any]) -> int:
        parent_id = value.get("parentId", ...)
        parent = self._indexes.get(parent_id) if isinstance(parent_id, str) else None
        if parent is not None:
            return parent
        return -1 if parent_id is None else len(self._entries) - 1

    def _note_program(self, value: Mapping[str, Any]) -> None:
        """Note what later entries of ours have to repeat."""
        message = value.get("message")
        if type(message) is dict and message.get("role") == "assistant":
            self._answer = message
        elif shows_edits(value):
            self._state["edits"] = True
        elif value.get("type") == "model_change":
            self._note_answer()
            self._note("api", None)
            self._note_texts(provider=value.get("provider"), model=value.get("modelId"))

    def _note_answer(self) -> None:
        """Note the last answer; only the last one counts."""
        message, self._answer = self._answer, None
        if message is not None:
            self._note_texts(**{key: message.get(key) for key in ("provider", "model", "api")})
            calls = {text_of(block, "id"): text_of(block, "name") for block in _tool_calls(message)}
            short = {key: name for key, name in calls.items() if len(key) <= 2 * _MAX_ID and len(name) <= _MAX_ID}
            self._note("calls", dict(list(short.items())[:_MAX_PAIRS]) or None)

    def _note_texts(self, **texts: Any) -> None:
        for key, text in texts.items():
            if isinstance(text, str) and 0 < len(text) <= 2 * _MAX_ID:
                self._note(key, text)

    # --- items

    def finish(self) -> Iterator[Item]:
        """Yield the items of all lines."""
        if self.detail is Detail.LISTING:
            return
        branch = self._find_branch() if self.whole else set(range(len(self._entries)))
        resolver = _Resolver(self, branch)
        index = 0
        for element in self._queue:
            if type(element) is not _Entry:
                yield element
                continue
            if element.message is None:
                yield from resolver.items(index, element)
            else:
                if index in branch:
                    resolver.add_message(index, element)
                yield element.message
            index += 1
        if len(branch) < len(self._entries):  # with branches, an empty result restores what was hidden
            leaf = self._entries[-1]
            messages = ((number, entry.message) for number, entry in enumerate(self._entries))
            hidden = tuple(message.id for number, message in messages if message and number not in branch)
            own_id = derive_id(self._session, f"leaf {leaf.item_id} {' '.join(hidden)}")
            yield HiddenMessages(id=own_id, ids=hidden, timestamp=text_of(leaf.row.value or {}, "timestamp"))

    def _find_branch(self) -> set[int]:
        """Return the indexes of the entries on the path from the leaf to the root."""
        branch: set[int] = set()
        gaps: list[list[str]] = []
        index = len(self._entries) - 1
        while index >= 0:
            branch.add(index)
            entry = self._entries[index]
            parent_id = text_of(entry.row.value or {}, "parentId")
            index = entry.parent
            if index >= 0 and parent_id and parent_id not in self._used_ids:
                substitute = text_of(self._entries[index].row.value or {}, "id")
                if substitute and max(len(substitute), len(parent_id)) <= _MAX_ID:
                    gaps.append([parent_id, substitute])
        self._note("gaps", gaps[:_MAX_PAIRS] or None)
        return branch


class _Resolver:
    """The items of entries whose branch is known."""

    def __init__(self, reader: PiReader, branch: set[int]) -> None:
        self._reader = reader
        self._branch = branch
        self._is_full = reader._is_full
        self._positions = {reader._entries[index].item_id: index for index in branch}
        self._visible: list[tuple[int, str]] = []  # index and id of the messages on the branch, so far
        self._targets: dict[str, Row] = {}  # id → entry of a message on the branch
        self._replacements: dict[str, str] = {}  # id of a message → id of the one that replaced it

    def add_message(self, index: int, entry: _Entry) -> None:
        """Note a message on the branch."""
        self._visible.append((index, entry.item_id))
        self._targets[entry.item_id] = entry.row

    def items(self, index: int, entry: _Entry) -> Iterator[Item]:
        """Yield the items of an entry that is not a message."""
        row, value = entry.row, entry.row.value or {}
        is_on_branch, kind = index in self._branch, value.get("type")
        if is_on_branch and kind == "compaction" and text_of(value, "summary"):
            extra = self._reader._extra(row, {**value, "summary": ""}, {})
            first_kept = self._first_kept(index, entry, value)
            yield read_summary(value, entry.item_id, text_of(value, "timestamp"), first_kept, extra)
        elif is_on_branch and kind == "context_edit" and self._is_edit(value):
            yield from self._edit(index, entry, value)
        elif self._is_full:
            yield self._reader._event(row, entry.item_id, _kind_of(value))

    def _first_kept(self, index: int, entry: _Entry, value: Mapping[str, Any]) -> str | None:
        """Return the first visible message from the first kept entry on; None if there is none."""
        first_kept, number = value.get("firstKeptEntryId"), value.get("firstKeptEntryIndex")
        start: int | None = index
        if first_kept is None and type(number) is int and number >= 0:
            parsed = self._reader._parsed
            start = (parsed[number] if number < len(parsed) else index) if self._reader.whole else None
        elif isinstance(first_kept, str) and first_kept:
            start = self._positions.get(first_kept, index if self._reader.whole else None)
            details = value.get("details")
            if start is None and isinstance(details, dict) and details.get(FIRST_KEPT_KEY) == first_kept:
                return first_kept  # a message, in a compaction of ours
        if start is None:
            raise NeedsWholeFileError
        position = bisect_left(self._visible, (start, ""))
        return self._visible[position][1] if position < len(self._visible) else None

    def _is_edit(self, value: Mapping[str, Any]) -> bool:
        """Return whether a known message is edited; without the whole file all are known."""
        target = text_of(value, "targetId")
        is_valid = value.get("replacement", ...) is None or _new_content(value) is not None
        return is_valid and bool(target) and (target in self._targets or not self._reader.whole)

    def _edit(self, index: int, entry: _Entry, value: dict[str, Any]) -> Iterator[Item]:
        target, content, reader = value["targetId"], _new_content(value), self._reader
        if not reader.whole and (content is not None or "edited" in reader.state):
            raise NeedsWholeFileError
        time = text_of(value, "timestamp")
        earlier = self._replacements.pop(target, None)
        ids = (target,) if earlier is None else (target, earlier)
        extra = self._reader._extra(entry.row, value, {"target": target})
        yield HiddenMessages(id=entry.item_id, ids=ids, timestamp=time, extra=extra)
        if content is None:
            return
        reader._note("edited", True)
        edited = _with_content(self._targets[target].value or {}, content)
        row = replace(entry.row, value=edited)
        message = read_message(row, f"{target}@{entry.item_id}", time, without_line=True)
        if message is not None:
            self._replacements[target] = message.id
            self._visible.append((index, message.id))
            yield attach_preserved(message, NAME, {EDIT_KEY: entry.item_id}) if self._is_full else message


def _kind_of(value: Mapping[str, Any]) -> str:
    kind = value.get("type")
    return event_kind(NAME, kind if kind not in ("message", "session") else "record")


def title_from(message: Message) -> str:
    """Return the title that pi shows for a session without a name."""
    return message.text.translate(_CONTROL_CHARACTERS).strip()[:_MAX_TITLE]


def _tool_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == "toolCall"]


def _new_content(edit: Mapping[str, Any]) -> str | list[Any] | None:
    """Return the content that an edit gives its message; None if it gives none."""
    replacement = edit.get("replacement")
    content = replacement.get("content") if isinstance(replacement, dict) else None
    return content if isinstance(content, str | list) else None


def _with_content(entry: dict[str, Any], content: str | list[Any]) -> dict[str, Any]:
    message = entry.get("message")
    if isinstance(message, dict):
        return {**entry, "message": {**message, "content": content}}
    return {**entry, "content": content}
