"""Extractive summary: made without a model, as the offline default and when a model fails.

It invents nothing. Requests, rules, errors and last words are quoted, tasks and commits are taken
from calls, and an earlier summary, whoever wrote it, is parsed and merged. Each item has a rank;
the best are kept up to the limit, so that a shorter limit gives the same summary with fewer items.
The first request and the rules are dropped last. Deterministic; linear in the messages; no message
makes it raise.

Small limits: all changed files are listed as long as they leave a quarter of the limit to the
items, then as many as fit. A limit below the size of the bare headings gives as many of them as
fit; nothing is longer than `limit`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from everlog.context.compaction.calls import MAX_ERRORS
from everlog.context.compaction.clues import is_rule
from everlog.context.compaction.failure_signs import error_key
from everlog.context.compaction.file_operations import MAX_LISTED_READS, NO_OPS, FileOps
from everlog.context.compaction.gather import WISH, Findings, gather, is_about, item_words
from everlog.context.compaction.outline import (
    ABOUT,
    ANSWER,
    ANSWER_LATEST,
    AWAIT_REQUEST,
    COMMAND,
    CWD,
    EARLIER_WORDS,
    EDITS,
    ERRORS,
    FACTS,
    FOCUS,
    GO_ON,
    KINDS,
    LINKS,
    NAMES,
    OUTPUT,
    QUESTION,
    SHAPES,
    STATEMENT,
    TESTS,
    UNANSWERED,
    WORKING,
    Item,
    Shape,
    parse,
)
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import CLOSE, OPEN, shorten
from everlog.context.tokens import TokenCounter, estimate_text
from everlog.model import Message

# Rank of the newest item of a kind, and the step to each older one. Tuned by reading summaries of
# real sessions; at 4,000 tokens items up to about rank 20 fit.
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
_MAX_ITEMS = {ABOUT: 20, DONE: 60, ERRORS: 2 * MAX_ERRORS}  # others: 40
_ESSENTIAL = 3.0  # up to this rank an item is shortened rather than dropped
_PER_WEIGHT = 6.0
# Prefixes of items that describe a state; the short-lived ones are not carried over.
_STATES = (
    *(WORKING, UNANSWERED, TESTS, EDITS, ANSWER, STATEMENT, EARLIER_WORDS, COMMAND, CWD),
    *(LINKS, NAMES, FOCUS, GO_ON, QUESTION, ANSWER_LATEST, AWAIT_REQUEST),
)
_SHORT_LIVED = (UNANSWERED, FOCUS, GO_ON, QUESTION, ANSWER_LATEST, AWAIT_REQUEST)
_MAX_EARLIER = 150  # items from each end of a kind in an earlier summary
_PUNCTUATION = re.compile(r"[\W_]+")
_WIDE = re.compile("[\u2e80-\U0010ffff]")
_MAX_MISSES = 30  # items that did not fit, until the search for smaller ones ends
_READ_SHARE, _MIN_ITEM_SHARE = 0.12, 0.25
_GOAL_ROOM = 40  # tokens besides the headings, so that the first request always fits


def summarise(
    messages: Sequence[Message],
    *,
    strategy: str = "structured",
    previous: str = "",
    ops: FileOps = NO_OPS,
    focus: str = "",
    limit: int = 4_000,
    count: TokenCounter = estimate_text,
) -> str:
    """Summarise the messages and the summary before them within `limit` tokens.

    `messages` are oldest first, `ops` is already cumulative. An unknown strategy is written as
    `structured`.
    """
    findings = gather(messages, focus)
    ranked = _rank_items(_merge(parse(previous), findings), focus)
    shape = SHAPES.get(strategy, SHAPES["structured"])
    return _fit(ranked, shape, ops, limit, _cautious_counter(count))


# --- merging --------------------------------------------------------------------------------


def _merge(earlier: dict[str, list[str]], findings: Findings) -> dict[str, list[Item]]:
    """Merge old items before new ones, without duplicates and settled items."""
    merged: dict[str, list[Item]] = {kind: [] for kind in KINDS}
    replaced = {s for s in _STATES if any(item.text.startswith(s) for item in findings.items)}
    for kind in KINDS:
        old = earlier[kind]
        if len(old) > 2 * _MAX_EARLIER:
            old = old[:_MAX_EARLIER] + old[-_MAX_EARLIER:]
        for text in old:
            item = _carry_over(kind, text, findings, replaced)
            if item is not None:
                merged[item.kind].append(item)
    # In a long earlier summary the important facts come first.
    merged[FACTS] = [i._replace(weight=i.weight + 0.08 * n) for n, i in enumerate(merged[FACTS])]
    new_errors = sum(item.kind == ERRORS for item in findings.items)
    merged[ERRORS] = merged[ERRORS][max(len(merged[ERRORS]) + new_errors - MAX_ERRORS, 0) :]
    for item in findings.items:
        merged[item.kind].append(item)
    done = {_key(item) for item in merged[DONE]}
    merged[IN_PROGRESS] = [item for item in merged[IN_PROGRESS] if _key(item) not in done]
    first = _key(merged[GOAL][0]) if merged[GOAL] else ""
    merged[CONSTRAINTS] = [item for item in merged[CONSTRAINTS] if _key(item) not in first]
    return {kind: _distinct(items) for kind, items in merged.items()}


def _carry_over(kind: str, text: str, findings: Findings, replaced: set[str]) -> Item | None:
    """Return an item of an earlier summary as it stands now, or None if it is settled."""
    state = next((prefix for prefix in _STATES if text.startswith(prefix)), "")
    if state == WORKING:
        if findings.answers:
            return Item(DONE, "Answered: " + text.removeprefix(WORKING), 2.0)
        return None if state in replaced else Item(kind, text)
    if state in (ANSWER, STATEMENT):
        if not replaced & {ANSWER, STATEMENT}:
            return Item(kind, text, 0.1)
        answer = text.removeprefix(state).strip(OPEN + CLOSE)
        return Item(DONE, shorten(answer, 240), 1.0) if state == ANSWER else None
    if state:
        return None if state in replaced or state in _SHORT_LIVED else Item(kind, text, 2.0)
    if kind in (IN_PROGRESS, NEXT_STEPS):
        if not _is_finished(text, findings):
            return Item(kind, text, 0.2)
        return Item(DONE, text, 0.5) if kind == IN_PROGRESS else None
    if kind == BLOCKED:
        succeeded = findings.answers or text.startswith(tuple(findings.succeeded_commands))
        return None if text.startswith("`") and succeeded else Item(kind, text, 0.5)
    if kind == FACTS:
        return Item(kind, text, 0.2)
    if kind == DONE:
        return Item(kind, shorten(text, 160), 1.0)
    if kind == CONSTRAINTS and text.startswith(OPEN) and not is_rule(text.strip(OPEN + CLOSE)):
        return Item(kind, text, WISH)
    return None if kind == OUTPUT else Item(kind, text)


def _is_finished(text: str, findings: Findings) -> bool:
    """Return whether something reported as done has most words of this item."""
    expected = item_words(text)
    return bool(expected) and any(
        len(expected & report) >= max(0.7 * len(expected), min(2, len(expected))) for report in findings.finished_words
    )


def _key(item: Item) -> str:
    if item.kind == ERRORS:
        return error_key(item.text.partition(" ← ")[0])
    return _PUNCTUATION.sub("", item.text.casefold())[:160]


def _distinct(items: list[Item]) -> list[Item]:
    """Return the last of equal items, but the first goal in its place."""
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
    position: int  # among all items, in the order of the summary
    item: Item


def _rank_items(outline: dict[str, list[Item]], focus: str) -> list[_Ranked]:
    """Return the items, the most important first."""
    focus_words = item_words(focus)
    ranked: list[_Ranked] = []
    position = 0
    for kind, items in outline.items():
        base, step = _RANKS[kind]
        dropped = max(len(items) - _MAX_ITEMS.get(kind, 40), 0)
        steps: dict[float, int] = {}  # per weight: items of one weight do not demote those of another
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
            if focus_words and is_about(item.text, focus_words):
                rank *= 0.3
            ranked.append(_Ranked(rank, position + index, item))
        position += len(items)
    return sorted(ranked, key=lambda entry: entry[:2])


# --- fitting --------------------------------------------------------------------------------


def _cautious_counter(count: TokenCounter) -> TokenCounter:
    """Return a counter with a lower bound, for rough ones that miss paths, code and scripts."""

    def count_cautiously(text: str) -> int:
        wide = len(_WIDE.findall(text))
        plain = len(text.encode("ascii", "ignore"))
        minimum = plain / 3.7 + 0.4 * (len(text) - plain - wide) + 0.8 * wide
        return max(count(text), math.ceil(minimum))

    return count_cautiously


def _fit(ranked: Sequence[_Ranked], shape: Shape, ops: FileOps, limit: int, count: TokenCounter) -> str:
    """Return as much as fits: the frame, the files, then items by rank."""
    frame = shape({}, NO_OPS, reads=0, modified=0)
    file_room = limit - max(count(frame) + _GOAL_ROOM, int(limit * _MIN_ITEM_SHARE))
    modified = _max_files(shape, FileOps(modified=ops.modified), file_room, count)
    reads = _max_files(shape, FileOps(read=ops.read), int(limit * _READ_SHARE), count)
    selected: list[_Ranked] = []

    def render() -> str:
        outline: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for _, _, item in sorted(selected, key=lambda entry: entry.position):
            outline[item.kind].append(item.text)
        return shape(outline, ops, reads=reads, modified=modified)

    room = limit - count(render())
    misses = 0
    for entry in ranked:
        cost = _cost(entry.item, count)
        for width in (80, 40) if entry.rank <= _ESSENTIAL else ():
            if cost > room:
                item = entry.item._replace(text=shorten(entry.item.text, width))
                entry, cost = entry._replace(item=item), _cost(item, count)
        if cost <= room:
            selected.append(entry)
            room -= cost
        elif (misses := misses + 1) > _MAX_MISSES:
            break
    # The counts of the parts do not add up to the count of the whole.
    while count(text := render()) > limit and (selected or reads or modified):
        if selected:
            del selected[-(len(selected) // 20 + 1) :]
        else:
            reads, modified = 0, modified // 2
    return text if count(text) <= limit else _cut_headings(frame, limit, count)


def _cost(item: Item, count: TokenCounter) -> int:
    return count(f"- [x] {item.text}\n") + 3  # labels


def _max_files(shape: Shape, ops: FileOps, room: int, count: TokenCounter) -> int:
    """Return how many files may be listed in this room."""
    limit = min(len(ops.modified) + len(ops.read), MAX_LISTED_READS if ops.read else 1 << 30)
    frame = count(shape({}, NO_OPS, reads=0, modified=0))
    while limit > 0:
        cost = count(shape({}, ops, reads=limit, modified=limit)) - frame
        if cost <= room:
            break
        limit = min(limit - 1, int(limit * max(room, 0) / cost))
    return limit


def _cut_headings(frame: str, limit: int, count: TokenCounter) -> str:
    rows = [row for row in frame.splitlines() if row.startswith("#")]
    while rows and count("\n".join(rows)) > limit:
        rows.pop()
    return "\n".join(rows)
