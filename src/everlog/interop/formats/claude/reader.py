"""Reader of a whole Claude Code transcript.

A record preserves its line under `claude`, without the content where our blocks are exact. If a
line makes several items, the first one preserves it; the others have `{"of": uuid}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everlog.ids import epoch_ms
from everlog.interop.formats.claude.blocks import LoadText, read_content
from everlog.interop.formats.claude.chain import (
    MESSAGE_TYPES,
    Conversation,
    content_blocks,
    find_boundary,
    find_conversation,
    is_auxiliary,
    is_chain_record,
)
from everlog.interop.formats.claude.messages import (
    content_of,
    find_first_kept,
    iter_tool_calls,
    messages_of,
    read_tokens_before,
    response_key,
    summary_of,
    usage_of,
)
from everlog.interop.formats.claude.session_titles import find_title
from everlog.interop.formats.format_types import DamagedBytes, ForeignSession, HiddenMessages, Item, Source, derive_id
from everlog.interop.formats.jsonl import Row, as_text, attach_preserved, parse_records, report_damage
from everlog.log.line_codec import replace_surrogates
from everlog.model import Event, Message, Usage

NAME = "claude"


class Transcript:
    """One transcript file. `read` may be called once."""

    def __init__(self, source: Source, path: str, session_id: str, load_text: LoadText) -> None:
        self.path = path
        self.session_id = session_id
        self.load_text = load_text
        self.rows = list(parse_records(source.lines(path), path))
        self.damage: list[DamagedBytes] = list(report_damage(self.rows))
        self.values = [row.value for row in self.rows if row.value is not None]
        # Chain records by the offset of their row.
        self.chain_records = {
            row.start: row.value for row in self.rows if row.value is not None and is_chain_record(row.value)
        }
        self.conversation: Conversation = find_conversation(self.chain_records.values())
        self.agent_calls: dict[str, str] = {}  # subagent → the call that started it
        self.tool_names: dict[str, str] = {}  # call → tool name
        self.last_starts: dict[str, int] = {}  # uuid → start of its last row
        self.records_by_uuid = {value["uuid"]: value for value in self.chain_records.values()}
        self.usage: dict[int, Usage] = {}  # start of a row → usage to count there
        self._survey()
        self.items: list[Item] = []
        self.used_ids: set[str] = set()
        self.hidden_ids: list[str] = []
        self.message_ids: dict[str, str] = {}  # uuid → id of its first message
        self.timestamp = ""  # the latest one read

    def _survey(self) -> None:
        """Collect what the whole file must tell before items are made."""
        responses: dict[str, tuple[int, Usage]] = {}
        for start, value in self.chain_records.items():
            self.last_starts[value["uuid"]] = start
            if "toolUseResult" in value:
                self._note_agent(value["toolUseResult"], _answered_call(value))
            elif "data" in value:
                self._note_agent(value["data"], value.get("parentToolUseID"))
            if value["type"] != "assistant" or not isinstance(value.get("message"), dict):
                continue
            self.tool_names.update(iter_tool_calls(value))
            usage = usage_of(value)
            if usage is None or is_auxiliary(value, is_subagent=self.conversation.is_subagent):
                continue
            key = response_key(value) or repr(start)
            best = responses.get(key, (0, usage))[1]
            largest = usage if usage.output_tokens >= best.output_tokens else best
            responses[key] = (start, largest)
        self.usage = dict(responses.values())

    def _note_agent(self, data: Any, call_id: Any) -> None:
        """Note which call started which subagent, for subagents without a metadata file."""
        agent_id = data.get("agentId") if isinstance(data, dict) else None
        if isinstance(agent_id, str) and isinstance(call_id, str):
            self.agent_calls.setdefault(agent_id, call_id)

    def read(
        self,
        metadata: Mapping[str, Any] = {},
        children: tuple[ForeignSession, ...] = (),
        external_records: Mapping[str, Any] = {},
    ) -> ForeignSession:
        """Return the session; `external_records` are possible parents outside the file."""
        for row in self.rows:
            self._add_row(row)
        if self.hidden_ids:
            ids = tuple(self.hidden_ids)
            marker_id = derive_id(self.session_id, f"hidden {' '.join(ids)}")
            self.items.append(HiddenMessages(id=marker_id, ids=ids, timestamp=self.timestamp))
        ends = {row.start: row.end for row in self.rows}
        for uuid, parent, problem in self.conversation.gaps:
            start = self.last_starts[uuid]
            if parent not in external_records:
                self.damage.append(DamagedBytes(self.path, start, ends[start], problem))
        return ForeignSession(
            session_id=self.session_id,
            metadata={**self._metadata(), **metadata},
            created_ms=self._created_ms(),
            items=tuple(self.items),
            line_count=sum(row.starts_line for row in self.rows),
            damage=tuple(self.damage),
            children=children,
        )

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"source": NAME}
        session_title = find_title(self.values, is_subagent=self.conversation.is_subagent)
        if session_title:
            metadata["name"] = replace_surrogates(session_title)
        for value in self.values:
            if isinstance(value.get("cwd"), str):
                metadata["cwd"] = value["cwd"]
                break
        for item in reversed(self.items):
            if isinstance(item, Message) and item.model and item.model != "<synthetic>":
                metadata["model"] = item.model
                break
        return metadata

    def _created_ms(self) -> int:
        for value in self.values:
            if isinstance(value.get("timestamp"), str):
                return epoch_ms(value["timestamp"]) or 0
        return 0

    # --- one row ----------------------------------------------------------------------------

    def _add_row(self, row: Row) -> None:
        value = row.value
        if value is None:
            event_id = self._unique_id(None, f"{row.start}+{row.end - row.start}")
            event = Event(id=event_id, kind="claude.damaged", data=row.event_data, timestamp=self.timestamp)
            self.items.append(attach_preserved(event, NAME, {"damaged": True}))
            return
        timestamp, uuid = value.get("timestamp"), value.get("uuid")
        if isinstance(timestamp, str):
            self.timestamp = timestamp
        uuid = uuid if isinstance(uuid, str) else None
        if row.start not in self.chain_records:  # a message keeps its uuid, whatever else has it
            self._add_event(row, value, None if uuid in self.last_starts else uuid)
        elif self.last_starts[value["uuid"]] != row.start:
            self._add_event(row, value, None, "duplicate")
        elif value["type"] not in MESSAGE_TYPES or is_auxiliary(value, is_subagent=self.conversation.is_subagent):
            self._add_event(row, value, uuid)
        elif value.get("isCompactSummary") and self._add_summary(row, value):
            pass
        elif not self._add_messages(row, value):
            self._add_event(row, value, uuid)

    def _add_event(self, row: Row, value: dict[str, Any], uuid: str | None, kind: str | None = None) -> None:
        event_type = kind or value.get("type")
        event = Event(
            id=self._unique_id(uuid, row.start),
            kind=f"claude.{event_type if isinstance(event_type, str) else 'object'}",
            data=value,
            timestamp=self.timestamp,
        )
        self.items.append(event if row.exact else attach_preserved(event, NAME, _raw_line(row)))

    def _add_summary(self, row: Row, value: dict[str, Any]) -> bool:
        """Add a summary; return False if it is not one of this conversation."""
        if value["uuid"] not in self.conversation.visible:
            return False
        boundary = find_boundary(value, self.records_by_uuid)
        first_kept = find_first_kept(boundary, self.last_starts, self.message_ids)
        tokens_before = read_tokens_before(boundary)
        summary = summary_of(
            value, self.load_text, timestamp=self.timestamp, tokens_before=tokens_before, first_kept=first_kept
        )
        if summary is None:
            return False
        item_id = self._unique_id(value["uuid"], row.start)
        extra = {NAME: value if row.exact else _raw_line(row)}
        self.items.append(replace(summary, id=item_id, extra=extra))
        return True

    def _add_messages(self, row: Row, value: dict[str, Any]) -> bool:
        """Add the messages of a record; return False if it has no readable content."""
        content = content_of(value)
        if content is None:
            return False
        parsed = read_content(content, self.load_text)
        messages = messages_of(
            value,
            parsed,
            lambda number: self._unique_id(value["uuid"], row.start, number),
            timestamp=self.timestamp,
            tool_names=self.tool_names,
            usage=self.usage.get(row.start),
        )
        preserved: Any = value if row.exact else _raw_line(row)
        if row.exact and parsed.exact:
            # An empty string stands for a string, null for a list.
            placeholder = "" if isinstance(content, str) else None
            preserved = {**value, "message": {**value["message"], "content": placeholder}}
        for number, message in enumerate(messages):
            message_preserved = {"of": value["uuid"]} if number else preserved
            self.items.append(attach_preserved(message, NAME, message_preserved))
        self.message_ids[value["uuid"]] = messages[0].id
        if value["uuid"] not in self.conversation.visible:
            self.hidden_ids += [message.id for message in messages]
        return True

    def _unique_id(self, uuid: str | None, position: int | str, number: int = 0) -> str:
        """Return an id that no other item has."""
        item_id = (f"{uuid}:{number}" if number else uuid) if uuid else ""
        if not item_id or item_id in self.used_ids:
            item_id = derive_id(self.session_id, f"{position}:{number}" if number else position)
        self.used_ids.add(item_id)
        return item_id


def _answered_call(value: Mapping[str, Any]) -> str | None:
    """Return the call that a record answers, if it answers exactly one."""
    call_ids = [block.get("tool_use_id") for block in content_blocks(value)]
    return call_ids[0] if len(call_ids) == 1 and isinstance(call_ids[0], str) else None


def _raw_line(row: Row) -> dict[str, Any]:
    return {"raw": as_text(row.data)}
