"""One transcript of Claude Code, read line by line into items.

A record keeps its line under `claude`, without the content where our blocks say the same. What
several items were made of is kept with the first; the others say `{"of": uuid}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everlog.ids import epoch_ms
from everlog.interop.formats.claude.blocks import Texts, take
from everlog.interop.formats.claude.chain import (
    SAID,
    Conversation,
    boundary_of,
    content_blocks,
    converse,
    is_aside,
    is_chain,
)
from everlog.interop.formats.claude.messages import (
    content_of,
    first_kept,
    messages_of,
    response_key,
    summary_of,
    tokens_before,
    tools_of,
    usage_of,
)
from everlog.interop.formats.claude.session_titles import title
from everlog.interop.formats.format_types import Hidden, Item, Lost, Read, Source, made_id
from everlog.interop.formats.jsonl import Row, as_text, keeping, lost, records
from everlog.log.line_codec import clean
from everlog.model import Event, Message, Usage

NAME = "claude"


class Transcript:
    """One file, while it is read. `read` may be called once."""

    def __init__(self, source: Source, path: str, name: str, texts: Texts) -> None:
        self.path = path
        self.name = name
        self.texts = texts
        self.rows = list(records(source.lines(path), path))
        self.lost: list[Lost] = list(lost(self.rows))
        self.values = [row.value for row in self.rows if row.value is not None]
        # The rows with a place in the chain, by where they start.
        self.chain = {
            row.start: row.value
            for row in self.rows
            if row.value is not None and is_chain(row.value)
        }
        self.talk: Conversation = converse(self.chain.values())
        self.agents: dict[str, str] = {}  # agent → the call that asked it
        self.tools: dict[str, str] = {}  # call → name of the tool
        self.last: dict[str, int] = {}  # uuid → start of its last row
        self.records = {value["uuid"]: value for value in self.chain.values()}
        self.usage: dict[int, Usage] = {}  # start of a row → what is counted there
        self._survey()
        self.items: list[Item] = []
        self.ids: set[str] = set()
        self.hidden: list[str] = []
        self.messages: dict[str, str] = {}  # uuid → id of its first message
        self.at = ""  # the last time that was seen

    def _survey(self) -> None:
        """What must be known of the whole file before its items are made."""
        counted: dict[str, tuple[int, Usage]] = {}
        for start, value in self.chain.items():
            self.last[value["uuid"]] = start
            if "toolUseResult" in value:
                self._note_agent(value["toolUseResult"], _answered(value))
            elif "data" in value:
                self._note_agent(value["data"], value.get("parentToolUseID"))
            if value["type"] != "assistant" or not isinstance(value.get("message"), dict):
                continue
            self.tools.update(tools_of(value))
            usage = usage_of(value)
            if usage is None or is_aside(value, inner=self.talk.inner):
                continue
            key = response_key(value) or repr(start)
            best = counted.get(key, (0, usage))[1]
            more = usage if usage.output_tokens >= best.output_tokens else best
            counted[key] = (start, more)
        self.usage = dict(counted.values())

    def _note_agent(self, told: Any, call: Any) -> None:
        """Which call asked which agent, for agents without a file that says so."""
        agent = told.get("agentId") if isinstance(told, dict) else None
        if isinstance(agent, str) and isinstance(call, str):
            self.agents.setdefault(agent, call)

    def read(
        self,
        facts: Mapping[str, Any] = {},
        children: tuple[Read, ...] = (),
        outside: Mapping[str, Any] = {},
    ) -> Read:
        """Everything of the file; `outside` are records that it may hang from."""
        for row in self.rows:
            self._add(row)
        if self.hidden:
            ids = tuple(self.hidden)
            made = made_id(self.name, f"hidden {' '.join(ids)}")
            self.items.append(Hidden(id=made, ids=ids, timestamp=self.at))
        ends = {row.start: row.end for row in self.rows}
        for uuid, parent, problem in self.talk.gaps:
            start = self.last[uuid]
            if parent not in outside:
                self.lost.append(Lost(self.path, start, ends[start], problem))
        return Read(
            name=self.name,
            facts={**self._facts(), **facts},
            created=self._created(),
            items=tuple(self.items),
            lines=sum(row.begins for row in self.rows),
            lost=tuple(self.lost),
            children=children,
        )

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"source": NAME}
        name = title(self.values, inner=self.talk.inner)
        if name:
            facts["name"] = clean(name)
        for value in self.values:
            if isinstance(value.get("cwd"), str):
                facts["cwd"] = value["cwd"]
                break
        for item in reversed(self.items):
            if isinstance(item, Message) and item.model and item.model != "<synthetic>":
                facts["model"] = item.model
                break
        return facts

    def _created(self) -> int:
        for value in self.values:
            if isinstance(value.get("timestamp"), str):
                return epoch_ms(value["timestamp"]) or 0
        return 0

    # --- one row ----------------------------------------------------------------------------

    def _add(self, row: Row) -> None:
        value = row.value
        if value is None:
            made = self._id(None, f"{row.start}+{row.end - row.start}")
            event = Event(id=made, kind="claude.damaged", data=row.told, timestamp=self.at)
            self.items.append(keeping(event, NAME, {"damaged": True}))
            return
        at, uuid = value.get("timestamp"), value.get("uuid")
        if isinstance(at, str):
            self.at = at
        uuid = uuid if isinstance(uuid, str) else None
        if row.start not in self.chain:
            self._add_event(row, value, uuid)
        elif self.last[value["uuid"]] != row.start:
            self._add_event(row, value, None, "duplicate")
        elif value["type"] not in SAID or is_aside(value, inner=self.talk.inner):
            self._add_event(row, value, uuid)
        elif value.get("isCompactSummary") and self._add_summary(row, value):
            pass
        elif not self._add_messages(row, value):
            self._add_event(row, value, uuid)

    def _add_event(
        self, row: Row, value: dict[str, Any], uuid: str | None, kind: str | None = None
    ) -> None:
        named = kind or value.get("type")
        event = Event(
            id=self._id(uuid, row.start),
            kind=f"claude.{named if isinstance(named, str) else 'object'}",
            data=value,
            timestamp=self.at,
        )
        self.items.append(event if row.exact else keeping(event, NAME, _raw(row)))

    def _add_summary(self, row: Row, value: dict[str, Any]) -> bool:
        """A summary, if it is one of this conversation."""
        if value["uuid"] not in self.talk.shown:
            return False
        boundary = boundary_of(value, self.records)
        kept = first_kept(boundary, self.last, self.messages)
        before = tokens_before(boundary)
        made = summary_of(value, self.texts, at=self.at, before=before, kept=kept)
        if made is None:
            return False
        name = self._id(value["uuid"], row.start)
        extra = {NAME: value if row.exact else _raw(row)}
        self.items.append(replace(made, id=name, extra=extra))
        return True

    def _add_messages(self, row: Row, value: dict[str, Any]) -> bool:
        """What was said in a record; False if it cannot be read as such."""
        content = content_of(value)
        if content is None:
            return False
        taken = take(content, self.texts)
        made = messages_of(
            value,
            taken,
            lambda number: self._id(value["uuid"], row.start, number),
            at=self.at,
            tools=self.tools,
            usage=self.usage.get(row.start),
        )
        keep: Any = value if row.exact else _raw(row)
        if row.exact and taken.exact:
            # A string stands for a string, null for a list.
            stand = "" if isinstance(content, str) else None
            keep = {**value, "message": {**value["message"], "content": stand}}
        for number, message in enumerate(made):
            own = {"of": value["uuid"]} if number else keep
            self.items.append(keeping(message, NAME, own))
        self.messages[value["uuid"]] = made[0].id
        if value["uuid"] not in self.talk.shown:
            self.hidden += [message.id for message in made]
        return True

    def _id(self, uuid: str | None, place: int | str, number: int = 0) -> str:
        """An id that no other item has."""
        name = (f"{uuid}:{number}" if number else uuid) if uuid else ""
        if not name or name in self.ids:
            name = made_id(self.name, f"{place}:{number}" if number else place)
        self.ids.add(name)
        return name


def _answered(value: Mapping[str, Any]) -> str | None:
    """The call that a record answers, if it answers just one."""
    calls = [one.get("tool_use_id") for one in content_blocks(value)]
    return calls[0] if len(calls) == 1 and isinstance(calls[0], str) else None


def _raw(row: Row) -> dict[str, Any]:
    return {"raw": as_text(row.data)}
