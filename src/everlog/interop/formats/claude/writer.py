"""Writer of a session as a transcript that Claude Code can resume.

Lines that came from such a transcript are written back unchanged. Later messages become new records
at the end of the chain. Messages removed since are omitted, and the links across them are joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.interop.formats.claude.blocks import ToolResult, read_content, saved_file_name, write_content
from everlog.interop.formats.claude.chain import Conversation, find_conversation
from everlog.interop.formats.claude.entry_builder import EntryBuilder, is_uuid, start_after
from everlog.interop.formats.claude.losses import count_compaction, count_message, count_metadata
from everlog.interop.formats.claude.records import MESSAGE_TYPES, Link, content_of, is_chain_record, link_of
from everlog.interop.formats.claude.session_titles import find_title
from everlog.interop.formats.format_types import ExportedFiles, derive_id, extra_field
from everlog.interop.formats.jsonl import as_bytes, parse_object
from everlog.interop.formats.writer import Losses
from everlog.log.fold import fold
from everlog.log.tool_pairs import ToolPairs, make_missing_result, pair_results
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata, Rewind, ToolCall

NAME = "claude"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Return the transcript of a session, without those of its subagents."""
    return _TranscriptWriter(metadata, records).write()


class _ForeignLine:
    """A line that a record came from."""

    def __init__(self, value: dict[str, Any] | None, raw: bytes | None = None) -> None:
        self.value = value
        self.raw = raw
        self.items: list[Message] = []  # the messages read from it

    @property
    def uuid(self) -> str | None:
        return self.value["uuid"] if self.value is not None and is_chain_record(self.value) else None


class _TranscriptWriter:
    def __init__(self, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self.metadata = metadata
        self.records = records
        self.foreign_lines: dict[int, _ForeignLine] = {}  # index in `records` → its line
        self.part_indexes: set[int] = set()  # of records that share the line of an earlier one
        self._find_foreign_lines()
        self.values = [line.value for line in self.foreign_lines.values() if line.value is not None]
        self.conversation: Conversation = find_conversation(
            link_of(value) for value in self.values if is_chain_record(value)
        )
        self.live_messages = fold(records).messages
        self.live_seqs = {message.seq for message in self.live_messages}
        self.foreign_seqs = {item.seq for line in self.foreign_lines.values() for item in line.items}
        self.pairs: ToolPairs = pair_results(self.live_messages)
        self.results: dict[int, list[int]] = {}  # position of a message → those of its results
        for result in sorted(self.pairs.caller):
            self.results.setdefault(self.pairs.caller[result], []).append(result)
        self.unanswered_calls: dict[int, list[ToolCall]] = {}
        for position, call in self.pairs.open_calls:
            self.unanswered_calls.setdefault(position, []).append(call)
        self.positions = {message.seq: index for index, message in enumerate(self.live_messages)}
        self.active_compactions = _active_compactions(records)
        self.dropped_boundaries = self._find_dropped_boundaries()
        self.removed_parents: dict[str, str | None] = {}  # removed uuid → its parent
        self.uuids: dict[int, str] = {}  # seq → uuid of its record
        session_id = _session_id(metadata, self.values)
        self.builder = EntryBuilder(metadata, start_after(metadata, self.values, session_id))
        self.lines: list[bytes] = []
        self.files: dict[str, bytes] = {}
        self.losses = Losses()
        self.early_results: set[int] = set()  # seqs of results moved up to their call
        self.open_calls: list[tuple[Message, ToolCall]] = []
        self.open_response_id: object = None  # the response of these calls

    # --- foreign lines ----------------------------------------------------------------------

    def _find_foreign_lines(self) -> None:
        first_lines: dict[str, _ForeignLine] = {}
        for index, record in enumerate(self.records):
            line = _foreign_line(record)
            if line is not None:
                self.foreign_lines[index] = line
                if isinstance(record, Message):
                    line.items.append(record)
                    first_lines[record.id] = line
            elif isinstance(record, Message) and b'"claude":{"of":' in record.line:
                first_line = first_lines.get(extra_field(record, NAME)["of"])
                if first_line is not None:
                    first_line.items.append(record)
                    self.part_indexes.add(index)
        for line in self.foreign_lines.values():
            if line.items and line.value is not None:
                _restore_content(line.value, line.items)

    def _write_foreign_line(self, line: _ForeignLine, record: AnyRecord) -> None:
        value, uuid = line.value, line.uuid
        if value is None:
            self.lines.append(line.raw or b"")
            return
        if self._is_removed(line, record) and uuid is not None:
            parent = value.get("parentUuid") or value.get("logicalParentUuid")
            self.removed_parents[uuid] = parent if isinstance(parent, str) else None
            self.losses.add("message that is hidden or was rewound", len(line.items))
            return
        changed = self._without_removed(self._relink(value), line)
        is_unchanged = changed is value and line.raw is not None
        self.lines.append(line.raw or b"" if is_unchanged else _encode(changed))
        for item in line.items:
            self.uuids[item.seq] = uuid or ""
            self._save_result_text(value, item)
        if uuid is not None and value["type"] in MESSAGE_TYPES and uuid in self.conversation.visible:
            self.builder.leaf = uuid
            self._note_open_calls(value, line.items)
        elif any(item.seq in self.live_seqs for item in line.items):
            self.losses.add("message of an abandoned branch that is live here")

    def _note_open_calls(self, value: Mapping[str, Any], items: Sequence[Message]) -> None:
        """Note the calls of the last response that have no result."""
        if all(item.role == "toolResult" for item in items):
            return
        response_id = value["message"].get("id") if value["type"] == "assistant" else None
        if response_id is None or response_id != self.open_response_id:
            self.open_calls = []
        self.open_response_id = response_id
        for item in items:
            calls = self.unanswered_calls.get(self.positions.get(item.seq, -1), ())
            self.open_calls += [(item, call) for call in calls]

    def _is_removed(self, line: _ForeignLine, record: AnyRecord) -> bool:
        """Return whether we removed it; branches abandoned in the file are kept."""
        if isinstance(record, Compaction):
            return record.seq not in self.active_compactions
        if line.uuid in self.dropped_boundaries:
            return True
        if not line.items or line.uuid not in self.conversation.visible:
            return False
        return not any(item.seq in self.live_seqs for item in line.items)

    def _find_dropped_boundaries(self) -> set[str]:
        """Return the boundaries of summaries that a rewind removed."""
        boundaries: set[str] = set()
        for index, line in self.foreign_lines.items():
            record, parent = self.records[index], (line.value or {}).get("parentUuid")
            if isinstance(record, Compaction) and record.seq not in self.active_compactions:
                boundaries |= {parent} if isinstance(parent, str) else set()
        return boundaries

    def _relink(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a record whose links skip removed records."""
        for key in ("parentUuid", "logicalParentUuid"):
            parent = value.get(key)
            if isinstance(parent, str) and parent in self.removed_parents:
                value = {**value, key: self._remaining_ancestor(parent)}
        return value

    def _remaining_ancestor(self, uuid: str) -> str | None:
        seen: set[str] = set()
        current: str | None = uuid
        while current is not None and current in self.removed_parents and current not in seen:
            seen.add(current)
            current = self.removed_parents[current]
        return current

    def _without_removed(self, value: dict[str, Any], line: _ForeignLine) -> dict[str, Any]:
        """Return a record with several results without the removed ones."""
        removed = [item for item in line.items if item.seq not in self.live_seqs]
        if not removed or line.uuid not in self.conversation.visible:
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
        for result in read_content(content, lambda _: None).results:
            preview = "\n".join(getattr(block, "text", "") for block in result.content)
            name = saved_file_name(preview) if result.call_id == item.tool_call_id else None
            if name and item.text != preview:
                path = f"{self.builder.session_id}/tool-results/{name}"
                self.files[path] = item.text.encode("utf-8", "replace")

    # --- new records ------------------------------------------------------------------------

    def _write_new_message(self, message: Message) -> None:
        if message.seq not in self.live_seqs:
            self.losses.add("message that is hidden or was rewound")
        if message.seq not in self.live_seqs or message.seq in self.early_results:
            return
        position = self.positions[message.seq]
        if message.role == "toolResult":
            if position not in self.pairs.caller:
                self.losses.add("result of a call that is not in the log")
                return
            caller = self.live_messages[self.pairs.caller[position]]
            self._add_entry(message, self.uuids.get(caller.seq))
            return
        self._answer_open_calls()
        self._add_entry(message, None)
        for result in self.results.get(position, ()):
            if self.live_messages[result].seq not in self.foreign_seqs:
                self.early_results.add(self.live_messages[result].seq)
                self._add_entry(self.live_messages[result], self.uuids.get(message.seq))
        self.open_calls = [(message, call) for call in self.unanswered_calls.get(position, ())]
        self._answer_open_calls()

    def _answer_open_calls(self) -> None:
        """Answer open calls: a conversation cannot continue after them."""
        for message, call in self.open_calls:
            self._add_entry(make_missing_result(call), self.uuids.get(message.seq), f"{message.id} {call.id}")
        self.open_calls = []

    def _add_entry(self, message: Message, caller_uuid: str | None, position: str | None = None) -> None:
        lost_blocks: Counter[str] = Counter()
        entry = self.builder.build_message(message, caller_uuid, position or message.seq, lost_blocks)
        for description, count in lost_blocks.items():
            self.losses.add(description, count)
        if entry is not None:
            count_message(self.losses, message)
            self.lines.append(_encode(entry))
            if message.seq:
                self.uuids[message.seq] = entry["uuid"]

    def _write_compaction(self, record: Compaction) -> None:
        if record.seq not in self.active_compactions:
            return
        self._answer_open_calls()
        count_compaction(self.losses, record)
        kept_seqs = [m.seq for m in self.live_messages if record.first_kept_seq <= m.seq < record.seq]
        uuids = [self.uuids[seq] for seq in kept_seqs if self.uuids.get(seq)]
        for entry in self.builder.build_compaction(record, list(dict.fromkeys(uuids)), record.seq):
            self.lines.append(_encode(entry))

    # --- all files --------------------------------------------------------------------------

    def write(self) -> ExportedFiles:
        """Return the files, and what they cannot hold."""
        for index, record in enumerate(self.records):
            if index in self.foreign_lines:
                self._write_foreign_line(self.foreign_lines[index], record)
            elif index in self.part_indexes:
                continue
            elif isinstance(record, Message):
                self._write_new_message(record)
            elif isinstance(record, Compaction):
                self._write_compaction(record)
            else:
                self.losses.count_record(record)
        session_title = (self.metadata.title or "").strip()
        if session_title and session_title != find_title(self.values, is_subagent=self.conversation.is_subagent):
            self.lines.append(_encode(self.builder.build_title(session_title)))
        files = {self.builder.path: b"".join(line + b"\n" for line in self.lines), **self.files}
        count_metadata(self.losses, self.metadata, has_records=bool(self.builder.leaf or self.values))
        return ExportedFiles(files, self.losses.describe())


def _link(value: Mapping[str, Any]) -> Link:
    link = link_of(value)
    link.content = content_of(value)
    return link


def _foreign_line(record: AnyRecord) -> _ForeignLine | None:
    """Return the line of a record; None if it came from elsewhere."""
    preserved = extra_field(record, NAME) if b'"claude":{' in record.line else None
    if isinstance(record, Event):
        if not record.kind.startswith("claude."):
            return None
        if isinstance(preserved, dict) and preserved.get("damaged") is True:
            return _ForeignLine(None, as_bytes(record.data))
        raw = preserved.get("raw") if isinstance(preserved, dict) else None
        return _ForeignLine(record.data, as_bytes(raw) if isinstance(raw, dict) else None)
    if not isinstance(preserved, dict) or not isinstance(record, Message | Compaction):
        return None
    if isinstance(preserved.get("raw"), dict) and "type" not in preserved:
        raw = as_bytes(preserved["raw"]) or b""
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


def _active_compactions(records: Sequence[AnyRecord]) -> set[int]:
    """Return the seqs of compactions that no rewind removed."""
    active: list[Compaction] = []
    for record in records:
        if isinstance(record, Compaction):
            active.append(record)
        elif isinstance(record, Rewind):
            active = [compaction for compaction in active if record.to_seq >= compaction.first_kept_seq - 1]
    return {compaction.seq for compaction in active}


def _session_id(metadata: Metadata, values: Sequence[Mapping[str, Any]]) -> str:
    """Return the session's Claude id: its former one, else ours if a UUID, else a derived one."""
    aliases = [name.removeprefix("claude:") for name in metadata.names if name.startswith("claude:")]
    session_ids = [value.get("sessionId") for value in reversed(values)]
    for candidate in (*aliases, *session_ids, metadata.id):
        if isinstance(candidate, str) and is_uuid(candidate):
            return candidate
    return derive_id(NAME, metadata.id)
