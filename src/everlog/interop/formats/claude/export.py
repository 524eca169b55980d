"""Writing a session as a transcript that Claude Code can resume.

Lines that came from such a transcript are written back unchanged, and later messages are appended.
Messages that were removed since are left out, and the links across them are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from everlog.interop.formats.claude.append import encode_answers
from everlog.interop.formats.claude.blocks import (
    ToolResult,
    read_content,
    saved_file_name,
    typed_content,
    write_content,
)
from everlog.interop.formats.claude.entry_builder import is_uuid
from everlog.interop.formats.claude.reader import NAME
from everlog.interop.formats.claude.records import is_chain_record
from everlog.interop.formats.format_types import FileEdit, derive_id
from everlog.interop.formats.jsonl import as_bytes, parse_object
from everlog.interop.formats.preserved_lines import RawLine
from everlog.interop.formats.session_export import IMPLIED, SessionExport
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata

if TYPE_CHECKING:
    from everlog.interop.formats.foreign_format import ForeignFormat

_encode = msgspec.json.Encoder().encode


class _ForeignLine:
    """A line that a record came from."""

    def __init__(self, value: dict[str, Any] | None, raw: bytes | None = None) -> None:
        self.value = value
        self.raw = raw
        self.items: list[Message] = []  # the messages read from it

    @property
    def uuid(self) -> str:
        return str(self.value["uuid"]) if self.value is not None and is_chain_record(self.value) else ""


class ClaudeExport(SessionExport):
    """A session as a transcript, without those of its subagents."""

    def __init__(self, format: ForeignFormat, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self._foreign: dict[int, _ForeignLine] = {}  # seq → line
        self._by_id: dict[str, _ForeignLine] = {}  # id of its first message → line
        super().__init__(format, metadata, records)
        self._chain = [line.value for line in self._foreign.values() if line.value is not None and line.uuid]
        self._session_id = _session_id(metadata, self._foreign.values())
        self._result_files: dict[str, bytes] = {}
        self._removed_parents: dict[str, str | None] = {}  # removed uuid → its parent
        self._dropped_boundaries: set[object] = set()  # of summaries that a rewind removed
        for record in records:
            if record.seq in self._foreign and isinstance(record, Compaction) and not self.markers.is_standing(record):
                self._dropped_boundaries.add((self._foreign[record.seq].value or {}).get("parentUuid"))
        for line in self._foreign.values():
            if line.items and line.value is not None:
                _restore_content(line.value, line.items)

    @property
    def session_id(self) -> str:
        """The UUID of the session."""
        return self._session_id

    def read_file(self, path: str) -> bytes | None:
        """Return the text of a large result."""
        return self._result_files.get(f"{self._session_id}/{path}")

    def original_line(self, record: AnyRecord, preserved: dict[str, Any] | None) -> RawLine | None:
        """Note the line that a record came from."""
        line = _foreign_line(record, preserved)
        if line is None:
            if not isinstance(record, Message) or preserved is None or preserved.get("of") not in self._by_id:
                return None
            self._by_id[preserved["of"]].items.append(record)
            return IMPLIED
        self._foreign[record.seq] = line
        if isinstance(record, Message):
            line.items.append(record)
            self._by_id[record.id] = line
        return RawLine(line.raw or b"")

    # --- original lines

    def restore(self, record: AnyRecord, line: RawLine) -> None:
        """Write the line that a record came from, without what was removed."""
        foreign = self._foreign.get(record.seq)
        if foreign is None:
            return  # written with the first message of its line, or implied by other lines
        value = foreign.value
        if value is not None and foreign.uuid and self._is_removed(foreign, record):
            parent = value.get("parentUuid") or value.get("logicalParentUuid")
            self._removed_parents[foreign.uuid] = parent if isinstance(parent, str) else None
            self.losses.add("message that is hidden or was rewound", len(foreign.items))
            return
        changed = None if value is None else self._without_removed(self._relink(value), foreign)
        is_unchanged = changed is value and foreign.raw is not None
        self.add_line(foreign.raw or b"" if is_unchanged or changed is None else _encode(changed))
        self._state = None
        if not isinstance(record, Message):
            self.note(record)
        for item in foreign.items:
            if item.seq not in self.removed:
                self.note(item)
                self._save_result_text(value or {}, item)

    def _is_removed(self, line: _ForeignLine, record: AnyRecord) -> bool:
        if isinstance(record, Compaction):
            return not self.markers.is_standing(record)
        if line.uuid in self._dropped_boundaries:
            return True
        return bool(line.items) and all(item.seq in self.removed for item in line.items)

    def _relink(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a record whose links skip removed records."""
        for key in ("parentUuid", "logicalParentUuid"):
            parent, seen = value.get(key), set()
            while isinstance(parent, str) and parent in self._removed_parents and parent not in seen:
                seen.add(parent)
                parent = self._removed_parents[parent]
            if seen:
                value = {**value, key: parent}
        return value

    def _without_removed(self, value: dict[str, Any], line: _ForeignLine) -> dict[str, Any]:
        """Return a record with several results without the removed ones."""
        removed = [item for item in line.items if item.seq in self.removed]
        if not removed:
            return value
        call_ids = {item.tool_call_id for item in removed if item.role == "toolResult"}
        removes_text = any(item.role != "toolResult" for item in removed)
        content = value["message"]["content"]
        remaining = [
            block
            for block in content
            if not (
                block.get("tool_use_id") in call_ids
                if isinstance(block, dict) and block.get("type") == "tool_result"
                else removes_text
            )
        ]
        return {**value, "message": {**value["message"], "content": remaining}}

    def _save_result_text(self, value: Mapping[str, Any], item: Message) -> None:
        """Add the file of a large result, if we have its text."""
        content = value["message"]["content"]
        if item.role != "toolResult" or isinstance(content, str):
            return
        for result in read_content(typed_content(content) or (), lambda _: None).results:
            preview = "\n".join(getattr(block, "text", "") for block in result.content)
            name = saved_file_name(preview) if result.call_id == item.tool_call_id else None
            if name and item.text != preview:
                self._result_files[f"{self._session_id}/tool-results/{name}"] = item.text.encode("utf-8", "replace")

    # --- the end

    def closing_edit(self) -> FileEdit:
        """Answer the open calls of a new message: a conversation cannot continue after them."""
        last = self._messages[-1] if self._messages else None
        is_new = last is not None and last.seq not in self.originals
        return encode_answers(self.state, self) if is_new else FileEdit()

    def files(self) -> dict[str, bytes]:
        """Return the transcript, in the place of a subagent's if it is one, and the texts of large results."""
        agent_id = self._chain[-1].get("agentId") if self._chain else None
        is_subagent = isinstance(agent_id, str) and all(value.get("isSidechain") for value in self._chain)
        inner = f"/subagents/agent-{agent_id}" if is_subagent else ""
        return {f"{self._session_id}{inner}.jsonl": bytes(self.content), **self._result_files}


def _foreign_line(record: AnyRecord, preserved: dict[str, Any] | None) -> _ForeignLine | None:
    """Return the line of a record; None if it came from elsewhere, or shares the line of an earlier one."""
    fields = preserved or {}
    raw = as_bytes(fields["raw"]) if isinstance(fields.get("raw"), dict) and "type" not in fields else None
    if isinstance(record, Event):
        if not record.kind.startswith(f"{NAME}."):
            return None
        is_damaged = fields.get("damaged") is True
        return _ForeignLine(None, as_bytes(record.data)) if is_damaged else _ForeignLine(record.data, raw)
    if preserved is None or not isinstance(record, Message | Compaction):
        return None
    if raw is not None:
        return _ForeignLine(parse_object(raw)[0], raw)
    return _ForeignLine(preserved) if "of" not in preserved or "type" in preserved else None


def _restore_content(value: dict[str, Any], items: Sequence[Message]) -> None:
    """Restore the content that was omitted because our blocks are exact."""
    message = value.get("message")
    if not isinstance(message, dict):
        return
    if message.get("content") == "":
        message["content"] = items[-1].text
    elif message.get("content", "") is None:
        results = [
            ToolResult(item.tool_call_id or "", item.content, item.is_error)
            for item in items
            if item.role == "toolResult"
        ]
        blocks = [block for item in items if item.role != "toolResult" for block in item.content]
        message["content"] = write_content(results, blocks)


def _session_id(metadata: Metadata, lines: Iterable[_ForeignLine]) -> str:
    """Return the session's Claude id: its former one, else ours if a UUID, else a derived one."""
    aliases = [name.removeprefix(f"{NAME}:") for name in metadata.names if name.startswith(f"{NAME}:")]
    session_ids = [(line.value or {}).get("sessionId") for line in reversed([*lines])]
    for candidate in (*aliases, *session_ids, metadata.id):
        if isinstance(candidate, str) and is_uuid(candidate):
            return candidate
    return derive_id(NAME, metadata.id)
