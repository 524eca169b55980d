"""Selection of the records of a Claude Code transcript that form the conversation.

Every record names its parent, and the conversation is the path from the newest end to the root.
Three things are added to that walk, because history would disappear without them: it crosses
compaction boundaries, it continues with the previous record in the file where a parent is missing,
and it includes the parallel tool calls of a response, of which a walk meets only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

CHAIN_TYPES = frozenset({"user", "assistant", "system", "attachment", "progress"})
MESSAGE_TYPES = frozenset({"user", "assistant"})
JsonObject = Mapping[str, Any]


class Gap(NamedTuple):
    """A record whose parent cannot be followed."""

    uuid: str
    parent: str
    problem: str


class Conversation(NamedTuple):
    """The uuids of visible chain records, and the end of the conversation."""

    visible: frozenset[str]
    leaf: str | None
    gaps: tuple[Gap, ...]
    is_subagent: bool  # a subagent's transcript: all of it is a visible side chain


def is_chain_record(value: JsonObject) -> bool:
    """Return whether a record is part of the chain."""
    kind = value.get("type")
    return isinstance(kind, str) and kind in CHAIN_TYPES and isinstance(value.get("uuid"), str)


def is_auxiliary(value: JsonObject, *, is_subagent: bool) -> bool:
    """Return whether a record is kept but not displayed."""
    return bool(value.get("isMeta") or value.get("teamName") or (value.get("isSidechain") and not is_subagent))


def _is_main_message(value: JsonObject) -> bool:
    """Return whether a record is a message of the main transcript."""
    return value["type"] in MESSAGE_TYPES and not (value.get("isSidechain") or value.get("teamName"))


def _is_displayed(value: JsonObject) -> bool:
    return value["type"] in MESSAGE_TYPES and not is_auxiliary(value, is_subagent=False)


def content_blocks(value: JsonObject) -> Sequence[JsonObject]:
    """Return the blocks of a record's message that are objects."""
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [item for item in content if isinstance(item, dict)] if isinstance(content, list) else ()


def find_conversation(chain: Iterable[JsonObject]) -> Conversation:
    """Return the conversation in the chain records of a file, given in file order."""
    records: dict[str, JsonObject] = {}
    for value in chain:
        records.pop(value["uuid"], None)  # the last occurrence wins, at its own position
        records[value["uuid"]] = value
    messages = [value for value in records.values() if value["type"] in MESSAGE_TYPES]
    is_subagent = bool(messages) and all(value.get("isSidechain") for value in messages)
    walk = _ChainWalk(records, is_subagent)
    leaf = walk.find_leaf()
    if leaf is None:
        return Conversation(frozenset(), None, (), is_subagent)
    visible, gaps = walk.walk_up(leaf)
    _add_parallel_calls(records, visible)
    gaps += walk.add_orphans(visible)
    _add_summaries(records, visible, leaf)
    return Conversation(frozenset(visible), leaf, tuple(gaps), is_subagent)


class _ChainWalk:
    def __init__(self, records: dict[str, JsonObject], is_subagent: bool) -> None:
        self.records = records
        self.is_subagent = is_subagent
        self.order = list(records)
        self.positions = {uuid: position for position, uuid in enumerate(self.order)}
        # Position of the previous main record, for each record; paths are compressed on use.
        self._previous = [-1] * len(self.order)
        nearest = -1
        for index, value in enumerate(records.values()):
            self._previous[index] = nearest
            if is_subagent or not (value.get("isSidechain") or value.get("teamName")):
                nearest = index
        self._parents = {uuid: self._parent_link(uuid, value) for uuid, value in records.items()}

    def find_leaf(self) -> str | None:
        """Return the newest end of the conversation."""
        messages = [uuid for uuid in self.order if self.records[uuid]["type"] in MESSAGE_TYPES]
        if not messages:
            return None
        if self.is_subagent:
            return messages[-1]
        # The end with the newest message wins; records after that message that are not displayed
        # (a note to the model) are part of it.
        displayed: dict[str, str | None] = {}
        nearest: dict[str, str | None] = {}
        ends: list[tuple[int, int]] = []
        for uuid in self._find_ends():
            message = self._nearest(uuid, displayed, _is_displayed)
            end = self._nearest(uuid, nearest, _is_main_message)
            if end is not None:
                ends.append((-1 if message is None else self.positions[message], self.positions[end]))
        return self.order[max(ends)[1]] if ends else messages[-1]

    def _find_ends(self) -> list[str]:
        """Return the records without children, and the last record of each cycle."""
        parents = (value.get(key) for value in self.records.values() for key in ("parentUuid", "logicalParentUuid"))
        parent_uuids = {parent for parent in parents if isinstance(parent, str)}
        ends = [uuid for uuid in self.order if uuid not in parent_uuids]
        reached: set[str] = set()
        for uuid in [*ends, *reversed(self.order)]:
            if uuid not in reached and uuid in parent_uuids:
                ends.append(uuid)
            current: str | None = uuid
            while current is not None and current not in reached:
                reached.add(current)
                current = self._parents[current][0]
        return ends

    def _nearest(self, uuid: str, cache: dict[str, str | None], predicate: Callable[[JsonObject], bool]) -> str | None:
        """Return the first record, from this one upward, that satisfies the predicate."""
        path: list[str] = []
        current: str | None = uuid
        while current is not None and current not in cache:
            cache[current] = None  # there may be a cycle
            path.append(current)
            if predicate(self.records[current]):
                cache[current] = current
                break
            current = self._parents[current][0]
        nearest = cache[current] if current is not None else None
        cache.update(dict.fromkeys(path, nearest))
        return nearest

    def _parent_link(self, uuid: str, value: JsonObject) -> tuple[str | None, str]:
        """Return the parent, and the uuid of the declared parent if that is missing."""
        parent = declared = value.get("parentUuid", ...)  # null: a root; absent: damage
        if declared is None or declared is ...:
            parent = value.get("logicalParentUuid")  # the record before a compaction
        if isinstance(parent, str):
            if parent in self.records:
                return parent, ""
            return self._previous_record(uuid, ()), parent
        if value.get("subtype") == "compact_boundary":
            return self._previous_record(uuid, ()), ""
        return (None, "") if declared is None else (self._previous_record(uuid, ()), "(unnamed)")

    def _previous_record(self, uuid: str, seen: Iterable[str]) -> str | None:
        """Return the nearest previous record in the file that was not seen."""
        position = self._previous[self.positions[uuid]]
        skipped = []
        while position >= 0 and self.order[position] in seen:
            skipped.append(position)
            position = self._previous[position]
        for skipped_position in skipped:
            self._previous[skipped_position] = position
        return self.order[position] if position >= 0 else None

    def walk_up(self, leaf: str) -> tuple[set[str], list[Gap]]:
        """Return the records from an end to the root, and the gaps between them."""
        seen: set[str] = set()
        gaps: list[Gap] = []
        current: str | None = leaf
        while current is not None:
            seen.add(current)
            parent, missing = self._parents[current]
            if missing:
                gaps.append(_missing_parent(current, missing))
            elif parent in seen:
                gaps.append(Gap(current, parent or "", f"parent {(parent or '')[:80]} forms a cycle"))
            if parent in seen:
                parent = self._previous_record(current, seen)
            current = parent
        return seen, gaps

    def add_orphans(self, visible: set[str]) -> list[Gap]:
        """Add descendants of missing parents: they may not have been abandoned. Return the gaps."""
        is_orphan: dict[str, bool] = dict.fromkeys(visible, False)
        gaps: list[Gap] = []
        for uuid in self.order:
            path: list[str] = []
            current: str | None = uuid
            orphaned = False
            while current is not None:
                if current in is_orphan:
                    orphaned = is_orphan[current]
                    break
                is_orphan[current] = False
                path.append(current)
                parent, missing = self._parents[current]
                if missing:
                    orphaned = True
                    if not is_auxiliary(self.records[current], is_subagent=self.is_subagent):
                        gaps.append(_missing_parent(current, missing))
                    break
                current = parent
            if orphaned:
                is_orphan.update(dict.fromkeys(path, True))
        visible.update(uuid for uuid, verdict in is_orphan.items() if verdict)
        return gaps


def _missing_parent(uuid: str, parent: str) -> Gap:
    return Gap(uuid, parent, f"parent {parent[:80]} is missing")


# --- parallel tools -------------------------------------------------------------------------


def _add_parallel_calls(records: dict[str, JsonObject], visible: set[str]) -> None:
    """Add the other records of each visible response, and the results of its calls."""
    response_records: dict[str, list[str]] = {}  # response → uuids
    callers: dict[str, set[str]] = {}  # call → the responses that claim it
    caller_of: dict[str, JsonObject] = {}
    for uuid, value in records.items():
        if value["type"] == "assistant":
            response_id = response_id_of(value)
            response_records.setdefault(response_id, []).append(uuid)
            for call_id in block_values(value, "tool_use", "id"):
                callers.setdefault(call_id, set()).add(response_id)
                caller_of[call_id] = value
    visible_responses = {response for response, uuids in response_records.items() if not visible.isdisjoint(uuids)}
    for response_id in visible_responses:
        visible.update(response_records[response_id])
    answered_calls = {
        call
        for uuid in visible
        if records[uuid]["type"] == "user"
        for call in block_values(records[uuid], "tool_result", "tool_use_id")
    }
    for uuid, value in records.items():
        if uuid in visible or value["type"] != "user":
            continue
        for call_id in block_values(value, "tool_result", "tool_use_id"):
            claimants = callers.get(call_id, set())
            if call_id in answered_calls or len(claimants) != 1 or not claimants <= visible_responses:
                continue  # with two claimants, the caller is unknown
            if _is_same_agent(value, caller_of[call_id]):
                visible.add(uuid)
                answered_calls.add(call_id)


def response_id_of(value: JsonObject) -> str:
    """Return the id of an assistant record's response; a unique one if it names none."""
    message = value.get("message")
    message_id = message.get("id") if isinstance(message, dict) else None
    return message_id if isinstance(message_id, str) else f"\0{value['uuid']}"


def block_values(value: JsonObject, kind: str, key: str) -> Iterator[str]:
    """Yield the strings under a key in the blocks of one type."""
    for block in content_blocks(value):
        if block.get("type") == kind and isinstance(block.get(key), str):
            yield block[key]


def _is_same_agent(first: JsonObject, second: JsonObject) -> bool:
    return first.get("agentId") == second.get("agentId") and bool(first.get("isSidechain")) == bool(
        second.get("isSidechain")
    )


# --- compaction -----------------------------------------------------------------------------


def _add_summaries(records: dict[str, JsonObject], visible: set[str], leaf: str) -> None:
    """Add summaries that the walk bypassed because it entered their preserved records."""
    positions = {uuid: position for position, uuid in enumerate(records)}
    for uuid, value in records.items():
        if value.get("isCompactSummary") and uuid not in visible and positions[uuid] < positions[leaf]:
            tail = _preserved_segment(find_boundary(value, records)).get("tailUuid")
            if isinstance(tail, str) and tail in visible:
                visible.add(uuid)


def find_boundary(summary: JsonObject, records: Mapping[str, JsonObject]) -> JsonObject:
    """Return the boundary of a summary; an empty object if it is missing."""
    parent = summary.get("parentUuid")
    boundary = records.get(parent) if isinstance(parent, str) else None
    return boundary if boundary is not None and boundary.get("subtype") == "compact_boundary" else {}


def _preserved_segment(boundary: JsonObject) -> JsonObject:
    details = boundary.get("compactMetadata")
    segment = details.get("preservedSegment") if isinstance(details, dict) else None
    return segment if isinstance(segment, dict) else {}


def preserved_uuids(boundary: JsonObject) -> Sequence[str]:
    """Return the uuids that a boundary names as kept in the context."""
    details = boundary.get("compactMetadata")
    messages = details.get("preservedMessages") if isinstance(details, dict) else None
    uuids = messages.get("uuids") if isinstance(messages, dict) else None
    texts = [uuid for uuid in uuids if isinstance(uuid, str)] if isinstance(uuids, list) else []
    head = _preserved_segment(boundary).get("headUuid")
    return [*([head] if isinstance(head, str) else []), *texts]
