"""Which records of a Claude Code transcript are the conversation.

Every record names its parent, and the conversation is the way from the newest end to the root.
Three things are added to that walk, because without them history disappears: it crosses
compaction boundaries, it goes on where a parent is missing (with the record before, in the file),
and it takes in the parallel tool calls of a response, of which a walk meets only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

CHAIN = frozenset({"user", "assistant", "system", "attachment", "progress"})
SAID = frozenset({"user", "assistant"})
Object = Mapping[str, Any]


class Gap(NamedTuple):
    """A record whose parent cannot be gone to."""

    uuid: str
    parent: str
    problem: str


class Conversation(NamedTuple):
    """The outcome: uuids of chain records that are shown, and the end of the conversation."""

    shown: frozenset[str]
    leaf: str | None
    gaps: tuple[Gap, ...]
    inner: bool  # a subagent's transcript: all of it is a side chain, and is shown


def is_chain(value: Object) -> bool:
    """Whether a record has a place in the chain."""
    kind = value.get("type")
    return isinstance(kind, str) and kind in CHAIN and isinstance(value.get("uuid"), str)


def is_aside(value: Object, *, inner: bool) -> bool:
    """Whether a record is kept and not displayed."""
    return bool(
        value.get("isMeta") or value.get("teamName") or (value.get("isSidechain") and not inner)
    )


def _is_own(value: Object) -> bool:
    """Whether a record of a main transcript was said there."""
    return value["type"] in SAID and not (value.get("isSidechain") or value.get("teamName"))


def _is_displayed(value: Object) -> bool:
    return value["type"] in SAID and not is_aside(value, inner=False)


def content_blocks(value: Object) -> Sequence[Object]:
    """The blocks of a record's message that are objects."""
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else ()


def converse(objects: Iterable[Object]) -> Conversation:
    """Find the conversation in the chain records of a file, in their order."""
    records: dict[str, Object] = {}
    for value in objects:
        records.pop(value["uuid"], None)  # the last occurrence wins, at its own place
        records[value["uuid"]] = value
    said = [value for value in records.values() if value["type"] in SAID]
    inner = bool(said) and all(value.get("isSidechain") for value in said)
    walk = _Walk(records, inner)
    leaf = walk.leaf()
    if leaf is None:
        return Conversation(frozenset(), None, (), inner)
    shown, gaps = walk.up_from(leaf)
    _add_parallel(records, shown)
    gaps += walk.broken_off(shown)
    _add_summaries(records, shown, leaf)
    return Conversation(frozenset(shown), leaf, tuple(gaps), inner)


class _Walk:
    def __init__(self, records: dict[str, Object], inner: bool) -> None:
        self.records = records
        self.inner = inner
        self.order = list(records)
        self.place = {uuid: place for place, uuid in enumerate(self.order)}
        # For each record the nearest one before it that is not aside; shortened as it is used.
        self._back = [-1] * len(self.order)
        last = -1
        for place, value in enumerate(records.values()):
            self._back[place] = last
            if inner or not (value.get("isSidechain") or value.get("teamName")):
                last = place
        self._above = {uuid: self._link(uuid, value) for uuid, value in records.items()}

    def leaf(self) -> str | None:
        """The newest end of the conversation."""
        said = [uuid for uuid in self.order if self.records[uuid]["type"] in SAID]
        if not said:
            return None
        if self.inner:
            return said[-1]
        # Of the ends the one with the newest message; what is not displayed behind it (a note to
        # the model) is part of it.
        displayed: dict[str, str | None] = {}
        nearest: dict[str, str | None] = {}
        ends: list[tuple[int, int]] = []
        for uuid in self._ends():
            message = self._nearest(uuid, displayed, _is_displayed)
            last = self._nearest(uuid, nearest, _is_own)
            if last is not None:
                ends.append((-1 if message is None else self.place[message], self.place[last]))
        return self.order[max(ends)[1]] if ends else said[-1]

    def _ends(self) -> list[str]:
        """The records that are nobody's parent, and the last one of each circle of parents."""
        parents = (
            value.get(key)
            for value in self.records.values()
            for key in ("parentUuid", "logicalParentUuid")
        )
        named = {parent for parent in parents if isinstance(parent, str)}
        ends = [uuid for uuid in self.order if uuid not in named]
        reached: set[str] = set()
        for uuid in [*ends, *reversed(self.order)]:
            if uuid not in reached and uuid in named:
                ends.append(uuid)
            here: str | None = uuid
            while here is not None and here not in reached:
                reached.add(here)
                here = self._above[here][0]
        return ends

    def _nearest(
        self, uuid: str, known: dict[str, str | None], wanted: Callable[[Object], bool]
    ) -> str | None:
        """The record, or the first one above it, that is wanted."""
        way: list[str] = []
        here: str | None = uuid
        while here is not None and here not in known:
            known[here] = None  # it may be a circle
            way.append(here)
            if wanted(self.records[here]):
                known[here] = here
                break
            here = self._above[here][0]
        found = known[here] if here is not None else None
        known.update(dict.fromkeys(way, found))
        return found

    def _link(self, uuid: str, value: Object) -> tuple[str | None, str]:
        """The record above, and the uuid of the one that should be there if it is missing."""
        parent = own = value.get("parentUuid", ...)  # null is a root, nothing at all is damage
        if own is None or own is ...:
            parent = value.get("logicalParentUuid")  # before a compaction
        if isinstance(parent, str):
            if parent in self.records:
                return parent, ""
            return self._before(uuid, ()), parent
        if value.get("subtype") == "compact_boundary":
            return self._before(uuid, ()), ""
        return (None, "") if own is None else (self._before(uuid, ()), "of no name")

    def _before(self, uuid: str, seen: Iterable[str]) -> str | None:
        """The nearest record before, in the file, that was not seen."""
        place = self._back[self.place[uuid]]
        passed = []
        while place >= 0 and self.order[place] in seen:
            passed.append(place)
            place = self._back[place]
        for one in passed:
            self._back[one] = place
        return self.order[place] if place >= 0 else None

    def up_from(self, leaf: str) -> tuple[set[str], list[Gap]]:
        """The records from an end to the root."""
        seen: set[str] = set()
        gaps: list[Gap] = []
        here: str | None = leaf
        while here is not None:
            seen.add(here)
            above, missing = self._above[here]
            if missing:
                gaps.append(_missing(here, missing))
            elif above in seen:
                gaps.append(Gap(here, above or "", f"parent {(above or '')[:80]} closes a circle"))
            if above in seen:
                above = self._before(here, seen)
            here = above
        return seen, gaps

    def broken_off(self, shown: set[str]) -> list[Gap]:
        """Show what hangs from a parent that is missing: nobody can say that it was left."""
        broken: dict[str, bool] = dict.fromkeys(shown, False)
        gaps: list[Gap] = []
        for uuid in self.order:
            way: list[str] = []
            here: str | None = uuid
            verdict = False
            while here is not None:
                if here in broken:
                    verdict = broken[here]
                    break
                broken[here] = False
                way.append(here)
                above, missing = self._above[here]
                if missing:
                    verdict = True
                    if not is_aside(self.records[here], inner=self.inner):
                        gaps.append(_missing(here, missing))
                    break
                here = above
            if verdict:
                broken.update(dict.fromkeys(way, True))
        shown.update(uuid for uuid, verdict in broken.items() if verdict)
        return gaps


def _missing(uuid: str, parent: str) -> Gap:
    return Gap(uuid, parent, f"parent {parent[:80]} is missing")


# --- parallel tools -------------------------------------------------------------------------


def _add_parallel(records: dict[str, Object], shown: set[str]) -> None:
    """Add the rest of each response that is shown, and the results of its calls."""
    parts: dict[str, list[str]] = {}  # response → its records
    callers: dict[str, set[str]] = {}  # call → the responses that claim it
    caller_of: dict[str, Object] = {}
    for uuid, value in records.items():
        if value["type"] == "assistant":
            response = response_of(value)
            parts.setdefault(response, []).append(uuid)
            for call in block_ids(value, "tool_use", "id"):
                callers.setdefault(call, set()).add(response)
                caller_of[call] = value
    on = {response for response, uuids in parts.items() if not shown.isdisjoint(uuids)}
    for response in on:
        shown.update(parts[response])
    answered = {
        call
        for uuid in shown
        if records[uuid]["type"] == "user"
        for call in block_ids(records[uuid], "tool_result", "tool_use_id")
    }
    for uuid, value in records.items():
        if uuid in shown or value["type"] != "user":
            continue
        for call in block_ids(value, "tool_result", "tool_use_id"):
            claims = callers.get(call, set())
            if call in answered or len(claims) != 1 or not claims <= on:
                continue  # of two that claim a call nobody knows which made it
            if _same_agent(value, caller_of[call]):
                shown.add(uuid)
                answered.add(call)


def response_of(value: Object) -> str:
    """The response that an assistant's record is of; of its own if it names none."""
    message = value.get("message")
    name = message.get("id") if isinstance(message, dict) else None
    return name if isinstance(name, str) else f"\0{value['uuid']}"


def block_ids(value: Object, kind: str, key: str) -> Iterator[str]:
    """What the blocks of a kind in a record have under a key."""
    for block in content_blocks(value):
        if block.get("type") == kind and isinstance(block.get(key), str):
            yield block[key]


def _same_agent(one: Object, other: Object) -> bool:
    return one.get("agentId") == other.get("agentId") and bool(one.get("isSidechain")) == bool(
        other.get("isSidechain")
    )


# --- compaction -----------------------------------------------------------------------------


def _add_summaries(records: dict[str, Object], shown: set[str], leaf: str) -> None:
    """Add the summaries whose preserved records lead on: the walk went past them."""
    later = {uuid: place for place, uuid in enumerate(records)}
    for uuid, value in records.items():
        if value.get("isCompactSummary") and uuid not in shown and later[uuid] < later[leaf]:
            tail = _segment(boundary_of(value, records)).get("tailUuid")
            if isinstance(tail, str) and tail in shown:
                shown.add(uuid)


def boundary_of(summary: Object, records: Mapping[str, Object]) -> Object:
    """The boundary that a summary belongs to; empty if it is not there."""
    parent = summary.get("parentUuid")
    found = records.get(parent) if isinstance(parent, str) else None
    return found if found is not None and found.get("subtype") == "compact_boundary" else {}


def _segment(boundary: Object) -> Object:
    details = boundary.get("compactMetadata")
    segment = details.get("preservedSegment") if isinstance(details, dict) else None
    return segment if isinstance(segment, dict) else {}


def preserved(boundary: Object) -> Sequence[str]:
    """The uuids of records before a boundary that stay in the context, as far as it names them."""
    details = boundary.get("compactMetadata")
    messages = details.get("preservedMessages") if isinstance(details, dict) else None
    listed = messages.get("uuids") if isinstance(messages, dict) else None
    named = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    head = _segment(boundary).get("headUuid")
    return [*([head] if isinstance(head, str) else []), *named]
