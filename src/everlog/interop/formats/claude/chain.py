"""Selection of the records of a Claude Code transcript that form the conversation.

Every record names its parent, and the conversation is the path from the newest end to the root.
Three things are added to that walk, because history would disappear without them: it crosses
compaction boundaries, it continues with the previous record in the file where a parent is missing,
and it includes the parallel tool calls of a response, of which a walk meets only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from everlog.interop.formats.claude.records import MESSAGE_TYPES, JsonObject, Link, Record


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


def follow_straight(chain: Sequence[Record]) -> Conversation | None:
    """Return the conversation if each record follows the one before it; None if not."""
    leaf = previous = None
    for record in chain:
        if record.parentUuid != previous or record.isSidechain or record.teamName:
            return None
        previous = record.uuid
        if record.type in MESSAGE_TYPES:
            leaf = previous
    visible = frozenset([record.uuid for record in chain])
    if leaf is None or len(visible) < len(chain):
        return None
    return Conversation(visible, leaf, (), is_subagent=False)


def find_conversation(chain: Iterable[Link]) -> Conversation:
    """Return the conversation in the chain records of a file, given in file order."""
    records: dict[str, Link] = {}
    for link in chain:
        records.pop(link.uuid, None)  # the last occurrence wins, at its own position
        records[link.uuid] = link
    messages = [link for link in records.values() if link.is_message]
    is_subagent = bool(messages) and all(link.is_side for link in messages)
    walk = _ChainWalk(records, is_subagent)
    leaf = walk.find_leaf()
    if leaf is None:
        return Conversation(frozenset(), None, (), is_subagent)
    path, gaps = walk.walk_up(leaf)
    visible = set(path)
    _add_responses(records, visible)
    walk.hide_copies(visible, path)
    walk.add_results(visible)
    if orphan_gaps := walk.add_orphans(visible):
        gaps += orphan_gaps
        walk.hide_copies(visible, path)
    _add_summaries(records, visible, leaf)
    return Conversation(frozenset(visible), leaf, tuple(gaps), is_subagent)


class _ChainWalk:
    def __init__(self, records: dict[str, Link], is_subagent: bool) -> None:
        self.records = records
        self.is_subagent = is_subagent
        self.order = list(records)
        self.positions = {uuid: position for position, uuid in enumerate(self.order)}
        # Position of the previous main record, for each record; paths are compressed on use.
        self._previous = [-1] * len(self.order)
        nearest = -1
        for index, value in enumerate(records.values()):
            self._previous[index] = nearest
            if is_subagent or not (value.is_side or value.is_team):
                nearest = index
        self._copies: set[str] = set()  # hidden because another copy is visible
        self._parents = {
            uuid: (value.parent, "")
            if type(value.parent) is str and value.parent in records
            else self._parent_link(uuid, value)
            for uuid, value in records.items()
        }

    def find_leaf(self) -> str | None:
        """Return the newest end of the conversation."""
        messages = [uuid for uuid in self.order if self.records[uuid].is_message]
        if not messages:
            return None
        if self.is_subagent:
            return messages[-1]
        # The end with the newest message wins; notes to the model and errors after that message
        # are part of it.
        displayed: dict[str, str | None] = {}
        nearest: dict[str, str | None] = {}
        ends: list[tuple[int, int]] = []
        for uuid in self._find_ends():
            message = self._nearest(uuid, displayed, _is_spoken)
            end = self._nearest(uuid, nearest, Link.is_main)
            if end is not None:
                ends.append((-1 if message is None else self.positions[message], self.positions[end]))
        return self.order[max(ends)[1]] if ends else messages[-1]

    def _find_ends(self) -> list[str]:
        """Return the records without children, and the last record of each cycle."""
        parents = (parent for value in self.records.values() for parent in (value.parent, value.logical_parent))
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

    def _nearest(self, uuid: str, cache: dict[str, str | None], predicate: Callable[[Link], bool]) -> str | None:
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

    def _parent_link(self, uuid: str, value: Link) -> tuple[str | None, str]:
        """Return the parent, and the uuid of the declared parent if that is missing."""
        parent = declared = value.parent  # null: a root; absent: damage
        if declared is None or declared is ...:
            parent = value.logical_parent
        if isinstance(parent, str):
            if parent in self.records:
                return parent, ""
            return self._previous_record(uuid, ()), parent
        if value.is_boundary:
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
                    if not self._is_aside(self.records[current]):
                        gaps.append(_missing_parent(current, missing))
                    break
                current = parent
            if orphaned:
                is_orphan.update(dict.fromkeys(path, True))
        visible.update(uuid for uuid, verdict in is_orphan.items() if verdict)
        return gaps

    def _is_aside(self, value: Link) -> bool:
        """Return whether a record belongs to another agent."""
        return value.is_team or (value.is_side and not self.is_subagent)

    def _reaches(self, uuid: str, targets: set[str]) -> bool:
        """Return whether a record is one of some others, or descends from one."""
        seen: set[str] = set()
        current: str | None = uuid
        while current is not None and current not in targets and current not in seen:
            seen.add(current)
            parent, missing = self._parents[current]
            current = None if missing else parent
        return current in targets

    def hide_copies(self, visible: set[str], path: set[str]) -> None:
        """Hide all but one of the copies of a message.

        Claude Code may write a chain again under a new root, with new uuids. What remains is the
        copy on the path to the root, else one next to that path, else the newest.
        """
        if visible == path and not any(self._parents[uuid][1] for uuid in path):
            return
        copies: dict[object, list[str]] = {}
        for uuid in visible:
            value = self.records[uuid]
            if value.is_message and isinstance(value.timestamp, str):
                response_id = "" if value.response_id.startswith("\0") else value.response_id
                copies.setdefault((value.timestamp, response_id), []).append(uuid)
        old_responses: set[str] = set()  # with a record in another copy of the chain
        for group in copies.values():
            if len(group) > 1:
                group.sort(key=lambda uuid: (uuid in path, self._reaches(uuid, path), self.positions[uuid]))
            while len(group) > 1:
                kept = self.records[group.pop()]
                hidden = [uuid for uuid in group if _is_copy(self.records[uuid], kept)]
                old_responses.update(self.records[uuid].response_id for uuid in hidden)
                self._copies.update(hidden)
                visible.difference_update(hidden)
                group = [uuid for uuid in group if uuid in visible]
        old_responses.discard("")
        if old_responses:
            responses = [uuid for uuid in visible if self.records[uuid].response_id in old_responses]
            visible.difference_update([uuid for uuid in responses if not self._reaches(uuid, path)])

    def add_results(self, visible: set[str]) -> None:
        """Add the results of visible calls, which a walk does not meet if calls were parallel."""
        callers: dict[str, set[str]] = {}  # call → the responses that claim it
        caller_of: dict[str, Link] = {}
        visible_responses: set[str] = set()
        open_calls: set[str] = set()
        for uuid, value in self.records.items():
            for call_id in value.calls:
                callers.setdefault(call_id, set()).add(value.response_id)
                caller_of[call_id] = value
            if uuid in visible:
                visible_responses.add(value.response_id)
                open_calls.update(value.calls)
        results = [value for value in self.records.values() if value.results]
        for value in results:
            if value.uuid in visible:
                open_calls.difference_update(value.results)
        candidates = [
            value.uuid
            for value in results
            if value.uuid not in visible
            and not open_calls.isdisjoint(value.results)
            and not (self._copies and self._reaches(value.uuid, self._copies))
        ]
        for uuid in sorted(candidates, key=lambda uuid: not self._reaches(uuid, visible)):
            for call_id in self.records[uuid].results:
                if call_id not in open_calls or not callers[call_id] <= visible_responses or len(callers[call_id]) > 1:
                    continue  # with two claimants, the caller is unknown
                if _is_same_agent(self.records[uuid], caller_of[call_id]):
                    visible.add(uuid)
                    open_calls.discard(call_id)


def _add_responses(records: dict[str, Link], visible: set[str]) -> None:
    """Add the other records of each visible response: each of its blocks is a record."""
    response_records: dict[str, list[str]] = {}
    for uuid, value in records.items():
        if value.response_id:
            response_records.setdefault(value.response_id, []).append(uuid)
    for uuids in response_records.values():
        if len(uuids) > 1 and not visible.isdisjoint(uuids):
            visible.update(uuids)


def _is_spoken(value: Link) -> bool:
    """Return whether a record is more than a note to the model or an error."""
    return value.is_main() and not (value.is_error or value.is_meta)


def _is_copy(first: Link, second: Link) -> bool:
    """Return whether two records of the same time have the same content."""
    if first.request_id != second.request_id or list(first.results) != list(second.results):
        return False
    return first.content is not None and bool(first.content == second.content)


def _missing_parent(uuid: str, parent: str) -> Gap:
    return Gap(uuid, parent, f"parent {parent[:80]} is missing")


def _is_same_agent(first: Link, second: Link) -> bool:
    return bool(first.agent_id == second.agent_id) and first.is_side == second.is_side


# --- compaction -----------------------------------------------------------------------------


def _add_summaries(records: dict[str, Link], visible: set[str], leaf: str) -> None:
    """Add summaries that the walk bypassed because it entered their preserved records."""
    positions = {uuid: position for position, uuid in enumerate(records)}
    for uuid, value in records.items():
        if value.is_summary and uuid not in visible and positions[uuid] < positions[leaf]:
            boundary = find_boundary(value, records)
            tail = _preserved_segment(boundary.details if boundary else None).get("tailUuid")
            if isinstance(tail, str) and tail in visible:
                visible.add(uuid)


def find_boundary(summary: Link, records: Mapping[str, Link]) -> Link | None:
    """Return the boundary of a summary; None if it is missing."""
    boundary = records.get(summary.parent) if isinstance(summary.parent, str) else None
    return boundary if boundary is not None and boundary.is_boundary else None


def _preserved_segment(details: Any) -> JsonObject:
    segment = details.get("preservedSegment") if isinstance(details, dict) else None
    return segment if isinstance(segment, dict) else {}


def preserved_uuids(details: Any) -> Sequence[str]:
    """Return the uuids that the metadata of a boundary names as kept in the context."""
    messages = details.get("preservedMessages") if isinstance(details, dict) else None
    uuids = messages.get("uuids") if isinstance(messages, dict) else None
    texts = [uuid for uuid in uuids if isinstance(uuid, str)] if isinstance(uuids, list) else []
    head = _preserved_segment(details).get("headUuid")
    return [*([head] if isinstance(head, str) else []), *texts]
