"""A summary made without a model: the offline default, and what is left when a model fails.

It invents nothing. Requests, rules, errors and last words are quoted, tasks and commits are
taken from calls, and an earlier summary, whoever wrote it, is taken apart and merged. Each item
has a rank; the best are kept until the limit is reached, so that a short limit gives the same
summary with less in it. The first request and the rules go last. Equal input, equal output; the
time is linear in the messages, and no message makes it raise.

Too small limits: changed files are all listed as long as they leave a quarter of the limit to
the rest, then as many as fit. A limit below what the bare headings need gives as many of them as
fit; nothing is longer than `limit`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from everlog.context.compaction.calls import MOST_ERRORS
from everlog.context.compaction.clues import is_rule
from everlog.context.compaction.failure_signs import error_key
from everlog.context.compaction.file_operations import LISTED_READS, NO_OPS, FileOps
from everlog.context.compaction.gather import WISH, Findings, about, gather, words
from everlog.context.compaction.outline import (
    ABOUT,
    ANSWER,
    ANSWER_IT,
    COMMAND,
    CWD,
    EDITS,
    ERRORS,
    FACTS,
    FOCUS,
    GO_ON,
    KINDS,
    LATELY,
    LINKS,
    NAMES,
    OUTPUT,
    QUESTION,
    SHAPES,
    STATEMENT,
    TESTS,
    UNANSWERED,
    WAIT,
    WORKING,
    Item,
    Shape,
    parse,
)
from everlog.context.compaction.prompts import (
    BLOCKED,
    CONSTRAINTS,
    DECISIONS,
    DONE,
    GOAL,
    IN_PROGRESS,
    NEXT_STEPS,
)
from everlog.context.compaction.quoting import CLOSE, OPEN, shorten
from everlog.context.tokens import Counter, estimate_text
from everlog.model import Message

# Rank of the newest item of a kind, and how much each older one is behind it. Tuned by reading
# summaries of real sessions; at 4,000 tokens items up to about rank 20 find room.
_RANKS = {
    GOAL: (0.0, 2.0),
    ABOUT: (1.0, 0.4),
    CONSTRAINTS: (1.0, 0.4),
    IN_PROGRESS: (1.0, 0.7),
    BLOCKED: (1.0, 0.7),
    NEXT_STEPS: (2.0, 0.7),
    DONE: (3.0, 0.9),
    DECISIONS: (4.0, 1.3),
    FACTS: (2.0, 0.8),
    ERRORS: (2.0, 0.3),
    OUTPUT: (3.0, 0.5),
}
_MOST = {ABOUT: 20, DONE: 60, ERRORS: 2 * MOST_ERRORS}  # others: 40
_ESSENTIAL = 3.0  # up to this rank an item is rather shortened than dropped
_PER_WEIGHT = 6.0
# Beginnings of items that tell a state; some say nothing once there is more to tell.
_STATES = (
    *(WORKING, UNANSWERED, TESTS, EDITS, ANSWER, STATEMENT, LATELY, COMMAND, CWD, LINKS, NAMES),
    *(FOCUS, GO_ON, QUESTION, ANSWER_IT, WAIT),
)
_SHORT_LIVED = (UNANSWERED, FOCUS, GO_ON, QUESTION, ANSWER_IT, WAIT)
_OLD = 150  # items at each end of a kind in an earlier summary
_MARKS = re.compile(r"[\W_]+")
_WIDE = re.compile("[\u2e80-\U0010ffff]")
_MISSES = 30  # items that did not fit before the search for smaller ones ends
_READ_SHARE, _REST_SHARE = 0.12, 0.25
_GOAL_ROOM = 40  # tokens beside the bare headings, so that the first request is never crowded out


def summarise(
    messages: Sequence[Message],
    *,
    strategy: str = "structured",
    previous: str = "",
    ops: FileOps = NO_OPS,
    focus: str = "",
    limit: int = 4_000,
    count: Counter = estimate_text,
) -> str:
    """A summary of the messages, and of the summary before them, within `limit` tokens.

    `messages` are oldest first, `ops` is already cumulative. An unknown strategy is written as
    `structured`.
    """
    found = gather(messages, focus)
    ranked = _ranked(_merged(parse(previous), found), focus)
    shape = SHAPES.get(strategy, SHAPES["structured"])
    return _fitted(ranked, shape, ops, limit, _cautious(count))


# --- merging --------------------------------------------------------------------------------


def _merged(earlier: dict[str, list[str]], found: Findings) -> dict[str, list[Item]]:
    """Old items before new ones, each kind without repetitions and without what is settled."""
    kept: dict[str, list[Item]] = {kind: [] for kind in KINDS}
    replaced = {s for s in _STATES if any(item.text.startswith(s) for item in found.items)}
    for kind in KINDS:
        old = earlier[kind]
        for text in old if len(old) <= 2 * _OLD else old[:_OLD] + old[-_OLD:]:
            item = _carried(kind, text, found, replaced)
            if item is not None:
                kept[item.kind].append(item)
    # What an earlier summary says at length says the important first.
    kept[FACTS] = [i._replace(weight=i.weight + 0.08 * n) for n, i in enumerate(kept[FACTS])]
    newer = sum(item.kind == ERRORS for item in found.items)
    kept[ERRORS] = kept[ERRORS][max(len(kept[ERRORS]) + newer - MOST_ERRORS, 0) :]
    for item in found.items:
        kept[item.kind].append(item)
    done = {_key(item) for item in kept[DONE]}
    kept[IN_PROGRESS] = [item for item in kept[IN_PROGRESS] if _key(item) not in done]
    first = _key(kept[GOAL][0]) if kept[GOAL] else ""
    kept[CONSTRAINTS] = [item for item in kept[CONSTRAINTS] if _key(item) not in first]
    return {kind: _distinct(items) for kind, items in kept.items()}


def _carried(kind: str, text: str, found: Findings, replaced: set[str]) -> Item | None:
    """An item of an earlier summary as it stands now, or nothing if it is settled."""
    state = next((one for one in _STATES if text.startswith(one)), "")
    if state == WORKING:
        if found.answers:
            return Item(DONE, "Answered: " + text.removeprefix(WORKING), 2.0)
        return None if state in replaced else Item(kind, text)
    if state in (ANSWER, STATEMENT):
        if not replaced & {ANSWER, STATEMENT}:
            return Item(kind, text, 0.1)
        told = text.removeprefix(state).strip(OPEN + CLOSE)
        return Item(DONE, shorten(told, 240), 1.0) if state == ANSWER else None
    if state:
        return None if state in replaced or state in _SHORT_LIVED else Item(kind, text, 2.0)
    if kind in (IN_PROGRESS, NEXT_STEPS):
        if not _is_finished(text, found):
            return Item(kind, text, 0.2)
        return Item(DONE, text, 0.5) if kind == IN_PROGRESS else None
    if kind == BLOCKED:
        ours = text.startswith("`")
        settled = ours and (found.answers or any(text.startswith(c) for c in found.succeeded))
        return None if settled else Item(kind, text, 0.5)
    if kind == FACTS:
        return Item(kind, text, 0.2)
    if kind == DONE:
        return Item(kind, shorten(text, 160), 1.0)
    if kind == CONSTRAINTS and text.startswith(OPEN) and not is_rule(text.strip(OPEN + CLOSE)):
        return Item(kind, text, WISH)
    return None if kind == OUTPUT else Item(kind, text)


def _is_finished(text: str, found: Findings) -> bool:
    """Whether something reported as done has most words of this item."""
    wanted = words(text)
    return bool(wanted) and any(
        len(wanted & report) >= max(0.7 * len(wanted), min(2, len(wanted)))
        for report in found.finished
    )


def _key(item: Item) -> str:
    if item.kind == ERRORS:
        return error_key(item.text.partition(" ← ")[0])
    return _MARKS.sub("", item.text.casefold())[:160]


def _distinct(items: list[Item]) -> list[Item]:
    """The last of equal items, but the first goal where it was."""
    if not items:
        return items
    last: dict[str, Item] = {}
    for item in items:
        key = _key(item)
        last.pop(key, None)
        last[key] = item
    if items[0].kind == GOAL:
        first = _key(items[0])
        last.pop(first)
        return [items[0], *last.values()]
    return list(last.values())


# --- ranking --------------------------------------------------------------------------------


class _Ranked(NamedTuple):
    rank: float
    place: int  # among all items, in the order of the summary
    item: Item


def _ranked(outline: dict[str, list[Item]], focus: str) -> list[_Ranked]:
    """The items, the first to keep first."""
    wanted = words(focus)
    found: list[_Ranked] = []
    place = 0
    for kind, items in outline.items():
        base, step = _RANKS[kind]
        dropped = max(len(items) - _MOST.get(kind, 40), 0)
        steps: dict[float, int] = {}  # items of one weight do not push back those of another
        for index in range(len(items) - 1, -1, -1):
            item = items[index]
            behind = steps.get(item.weight, 0)
            steps[item.weight] = behind + 1
            rank = base + step * behind + _PER_WEIGHT * item.weight
            if kind == GOAL and index == 0:
                rank = 0.0
            elif index < dropped:
                continue
            elif kind == GOAL and behind and len(item.text) < 16 and item.text[1:-1].isascii():
                rank += 12.0  # "continue", "yes"
            if wanted and about(item.text, wanted):
                rank *= 0.3
            found.append(_Ranked(rank, place + index, item))
        place += len(items)
    return sorted(found, key=lambda one: one[:2])


# --- fitting --------------------------------------------------------------------------------


def _cautious(count: Counter) -> Counter:
    """A count that a rough one cannot deceive: paths, code and other scripts have many tokens."""

    def counted(text: str) -> int:
        wide = len(_WIDE.findall(text))
        plain = len(text.encode("ascii", "ignore"))
        least = plain / 3.7 + 0.4 * (len(text) - plain - wide) + 0.8 * wide
        return max(count(text), math.ceil(least))

    return counted


def _fitted(
    ranked: Sequence[_Ranked], shape: Shape, ops: FileOps, limit: int, count: Counter
) -> str:
    """As much as fits: the frame, the files, then items by their rank."""
    frame = shape({}, NO_OPS, reads=0, modified=0)
    modified = _most(
        shape,
        FileOps(modified=ops.modified),
        limit - max(count(frame) + _GOAL_ROOM, int(limit * _REST_SHARE)),
        count,
    )
    reads = _most(shape, FileOps(read=ops.read), int(limit * _READ_SHARE), count)
    chosen: list[_Ranked] = []

    def written() -> str:
        outline: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for _, _, item in sorted(chosen, key=lambda one: one.place):
            outline[item.kind].append(item.text)
        return shape(outline, ops, reads=reads, modified=modified)

    room = limit - count(written())
    misses = 0
    for one in ranked:
        cost = _cost(one.item, count)
        for width in (80, 40) if one.rank <= _ESSENTIAL else ():
            if cost > room:
                one = one._replace(item=one.item._replace(text=shorten(one.item.text, width)))
                cost = _cost(one.item, count)
        if cost <= room:
            chosen.append(one)
            room -= cost
        elif (misses := misses + 1) > _MISSES:
            break
    # Counts of parts do not add up to the count of the whole.
    while count(text := written()) > limit and (chosen or reads or modified):
        if chosen:
            del chosen[-(len(chosen) // 20 + 1) :]
        else:
            reads, modified = 0, modified // 2
    return text if count(text) <= limit else _fewer_lines(frame, limit, count)


def _cost(item: Item, count: Counter) -> int:
    return count(f"- [x] {item.text}\n") + 3  # labels


def _most(shape: Shape, ops: FileOps, room: int, count: Counter) -> int:
    """How many files may be listed in this room."""
    most = min(len(ops.modified) + len(ops.read), LISTED_READS if ops.read else 1 << 30)
    frame = count(shape({}, NO_OPS, reads=0, modified=0))
    while most > 0:
        cost = count(shape({}, ops, reads=most, modified=most)) - frame
        if cost <= room:
            break
        most = min(most - 1, int(most * max(room, 0) / cost))
    return most


def _fewer_lines(frame: str, limit: int, count: Counter) -> str:
    rows = [row for row in frame.splitlines() if row.startswith("#")]
    while rows and count("\n".join(rows)) > limit:
        rows.pop()
    return "\n".join(rows)
