"""A transcript that is followed as it grows.

`follow` goes on from the end of the conversation (`tip`) with the new lines alone. `whole` finds
the conversation in all of them (`chain`), and where it ends. Both give a record the same messages
under the same ids; its line stays in the file and is not kept with them.

Every record of a response repeats its usage, and a later one may say more. Here the first has it,
and a later one what it says beyond that: so nothing is counted twice however the lines come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from everlog.interop.formats.claude.blocks import Texts, take
from everlog.interop.formats.claude.chain import (
    SAID,
    Conversation,
    Object,
    block_ids,
    boundary_of,
    converse,
    is_aside,
    response_of,
)
from everlog.interop.formats.claude.fast_scan import chain_records
from everlog.interop.formats.claude.messages import (
    Counted,
    content_of,
    count,
    first_kept,
    messages_of,
    summary_of,
    tokens_before,
    tools_of,
)
from everlog.interop.formats.claude.tail_state import Tip
from everlog.interop.formats.format_types import Hidden, Line, made_id
from everlog.interop.formats.live_format import Followed, Notes, Said, Where
from everlog.model import Message, Usage


def follow(notes: Notes, lines: Iterable[Line], where: Where) -> Followed | None:
    """The items of new lines; None if they do not simply go on."""
    try:
        tip = msgspec.convert(notes, Tip)
    except msgspec.ValidationError:
        return None
    texts = partial(_text, where)
    items: list[Said] = []
    for value in chain_records(lines):
        calls, boundary = dict(tip.calls), tip.boundary
        shown = tip.add(value)
        if shown is None:
            return None
        if shown and value.get("isCompactSummary"):
            known = boundary if boundary and value.get("parentUuid") == boundary.uuid else None
            before, kept = (known.before, known.kept) if known else (0, None)
            made = summary_of(value, texts, at=tip.at, before=before, kept=kept)
            items += [made] if made else []
        elif shown:
            tools = {call: tool for call, (tool, _) in calls.items()}
            items += messages_in(value, texts, tip.at, tools, tip.count(value))
    return Followed(items, notes_of(tip))


def notes_of(tip: Tip) -> Notes:
    """What is noted of the end of a conversation, as JSON has it."""
    notes: Notes = msgspec.json.decode(msgspec.json.encode(tip))
    return notes


def _text(where: Where, name: str) -> str | None:
    data = where.read(f"tool-results/{name}")
    return None if data is None else data.decode("utf-8", "replace")


def messages_in(
    value: Object, texts: Texts, at: str, tools: Mapping[str, str], usage: Usage | None
) -> Sequence[Message]:
    """What was said in a record; nothing if it cannot be read."""
    content = content_of(value)
    if content is None:
        return []
    uuid = value["uuid"]
    return messages_of(
        value,
        take(content, texts),
        lambda number: f"{uuid}:{number}" if number else uuid,
        at=at,
        tools=tools,
        usage=usage,
    )


# --- the whole file -------------------------------------------------------------------------


def whole(lines: Iterable[Line], where: Where) -> Followed:
    """The items of a whole transcript, and which of them are no part of the conversation."""
    return _Whole(list(chain_records(lines)), where).followed()


class _Whole:
    def __init__(self, values: list[dict[str, Any]], where: Where) -> None:
        self.values = values
        self.where = where
        self.texts = partial(_text, where)
        self.talk: Conversation = converse(values)
        self.places = {value["uuid"]: place for place, value in enumerate(values)}
        self.records = {uuid: values[place] for uuid, place in self.places.items()}
        self.tools: dict[str, str] = {}  # call → name of the tool
        self.callers: dict[str, str] = {}  # call → the response that made it
        self.begins: dict[str, int] = {}  # response → place of its first record
        self._survey()
        self.counted: dict[str, Counted] = {}
        self.messages: dict[str, str] = {}  # uuid → id of its first message
        self.hidden: list[str] = []
        self.newest = 0  # place of the last record that is shown
        self.at = ""

    def _survey(self) -> None:
        for place, value in enumerate(self.values):
            if value["type"] == "assistant":
                response = response_of(value)
                if self._is_on(place):
                    self.begins.setdefault(response, place)
                for call, tool in tools_of(value):
                    self.tools[call] = tool
                    self.callers[call] = response

    def _is_on(self, place: int) -> bool:
        """Whether a record is part of the conversation, as far as it was said."""
        value = self.values[place]
        if self.places[value["uuid"]] != place:
            return False  # the last of a uuid counts
        return value["type"] not in SAID or value["uuid"] in self.talk.shown

    def followed(self) -> Followed:
        items: list[Said] = []
        for place, value in enumerate(self.values):
            if isinstance(value.get("timestamp"), str):
                self.at = value["timestamp"]
            aside = value["type"] not in SAID or is_aside(value, inner=self.talk.inner)
            if not aside and self.places[value["uuid"]] == place:
                items += self._items(value, place)
        if self.hidden:
            ids = tuple(self.hidden)
            made = made_id(self.where.name, f"hidden {' '.join(ids)}")
            items.append(Hidden(id=made, ids=ids, timestamp=self.at))
        return Followed(items, notes_of(self._tip()))

    def _items(self, value: Object, place: int) -> Sequence[Said]:
        shown = value["uuid"] in self.talk.shown
        if shown:
            self.newest = place
        if shown and value.get("isCompactSummary"):
            boundary = boundary_of(value, self.records)
            kept = first_kept(boundary, self.places, self.messages)
            before = tokens_before(boundary)
            made = summary_of(value, self.texts, at=self.at, before=before, kept=kept)
            return [made] if made else []
        usage = count(value, self.counted)
        messages = messages_in(value, self.texts, self.at, self.tools, usage)
        if messages:
            self.messages[value["uuid"]] = messages[0].id
        if not shown:
            self.hidden += [message.id for message in messages]
        return messages

    # --- its end ----------------------------------------------------------------------------

    def _tip(self) -> Tip:
        """The end of the conversation: its last response is gone through once more."""
        leaf = self.talk.leaf
        if leaf is None:
            return self._gone_through(0)
        for first in (self._last_response(), self.places[leaf]):
            tip = self._gone_through(first)
            if tip.has(leaf):
                return tip
        return Tip(leaf=leaf, near=[leaf], inner=self.talk.inner, at=self.at)

    def _gone_through(self, first: int) -> Tip:
        tip = Tip()
        for place in range(first, len(self.values)):
            value = self.values[place]
            if place == first and value["type"] in SAID:
                value = {**value, "parentUuid": None}  # what it hangs from does not matter here
            if self._is_on(place) and tip.add(value):
                tip.count(value)
        if self.talk.leaf is not None:
            tip.inner = self.talk.inner
        tip.at = self.at
        return tip

    def _last_response(self) -> int:
        """Where the last response begins, or the last message stands if it is of none."""
        value = self.values[self.newest]
        if value["type"] == "assistant":
            return self.begins.get(response_of(value), self.newest)
        calls = block_ids(value, "tool_result", "tool_use_id")
        response = next((self.callers[call] for call in calls if call in self.callers), "")
        return self.begins.get(response, self.newest)
