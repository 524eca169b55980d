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

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from everlog.context.compaction import calls as tool_calls
from everlog.context.compaction import dialogue
from everlog.context.compaction import outline as states
from everlog.context.compaction.file_operations import MAX_LISTED_READS, NO_OPS, FileOps, format_path
from everlog.context.compaction.outline import ERRORS, FACTS, KINDS, Item, parse, write
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import CLOSE, OPEN, quote, sentences, take_ends, truncate
from everlog.context.tokens import TokenCounter, estimate_text
from everlog.model import Message

_PER_WEIGHT = 6.0  # ranks
_MAX_ITEMS = 400
_MAX_EARLIER = 150  # items from each end of a kind in an earlier summary
_ESSENTIAL = 3.0  # up to this rank an item is shortened rather than dropped
_READ_SHARE, _MIN_ITEM_SHARE = 0.12, 0.25
_GOAL_ROOM = 40  # tokens besides the headings, so that the first request always fits
_OLD_WEIGHTS = {IN_PROGRESS: 0.2, NEXT_STEPS: 0.2, BLOCKED: 0.5, FACTS: 0.2, DONE: 1.0}
_STATES = (*states.LASTING, *states.SHORT_LIVED)
_Ranked = tuple[float, int, Item]  # rank, and the position in the summary


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
    merged = _merge(parse(previous), _gather(messages, focus))
    return _fit(_rank_items(merged, _words(focus)), strategy, ops, limit, count)


def _gather(messages: Sequence[Message], focus: str) -> list[Item]:
    """Collect the summary items of the messages, oldest first."""
    calls = tool_calls.read_calls(messages)
    utterances = dialogue.read_utterances(messages)
    last_call = calls[-1].position if calls else -1
    answered = bool(utterances) and utterances[-1].final and utterances[-1].position > last_call
    last_request = max((u.position for u in utterances if u.by_user), default=-1)
    cwd = next((message.cwd for message in reversed(messages) if message.cwd), "")
    items = [
        *dialogue.find_items(utterances),
        *tool_calls.find_work(calls),
        *tool_calls.collect_tasks(calls),
        *([] if answered else tool_calls.find_failing([c for c in calls if c.position >= last_request])),
        *([Item(FACTS, states.CWD + truncate(format_path(cwd), 200), 0.2)] if cwd else ()),
        *tool_calls.last_calls(calls),
        *dialogue.find_state(utterances, answered),
        *tool_calls.collect_errors(calls),
    ]
    if focus.strip():
        results = [take_ends(call.result, 2_000, 2_000) for call in calls[-200:] if call.result]
        items += _focus_items([*(u.text for u in utterances), *results], focus)
    return [item for item in items if item.text]


def _focus_items(texts: list[str], focus: str) -> Iterator[Item]:
    """Yield the newest sentences and lines about what the user asked to keep."""
    yield Item(FACTS, states.FOCUS + quote(focus, 300))
    quotes: dict[str, None] = {}
    for sentence in (sentence for text in reversed(texts) for sentence in sentences(text)):
        if len(quotes) < 14 and len(sentence) < 600 and _is_about(sentence, _words(focus)):
            quotes[quote(sentence, 220)] = None
    yield from (Item(FACTS, text, 0.3) for text in reversed(quotes))


def _words(text: str) -> frozenset[str]:
    """Return the words by which an item is recognised when it appears again."""
    return frozenset(re.findall(r"[^\W_]{3,}|[^\W\x00-\x7f]{2,}", text.casefold()))


def _is_about(text: str, focus_words: frozenset[str]) -> bool:
    """Return whether a text has the focus words, or half of them if they are many."""
    lower = text.casefold()
    return bool(focus_words) and 2 * sum(word in lower for word in focus_words) >= min(len(focus_words), 4)


# --- merging --------------------------------------------------------------------------------


def _merge(earlier: dict[str, list[str]], items: list[Item]) -> dict[str, list[Item]]:
    """Merge old items before new ones, without duplicates and settled items."""
    replaced = {state for state in _STATES if any(item.text.startswith(state) for item in items)}
    finished = [_words(item.text) for item in items if item.kind == DONE][-1_000:]
    merged: dict[str, dict[str, Item]] = {kind: {} for kind in KINDS}
    old = []
    for kind, texts in earlier.items():
        ends = dict.fromkeys((*texts[:_MAX_EARLIER], *texts[-_MAX_EARLIER:]))
        # In a long earlier summary the important facts come first.
        old += [Item(kind, text, 0.08 * n if kind == FACTS else 0.0) for n, text in enumerate(ends)]
    for item in (*filter(None, (_carry_over(item, replaced, finished) for item in old)), *items):
        same_kind, key = merged[item.kind], _key(item)
        if item.kind != GOAL or next(iter(same_kind), "") != key:  # the first goal stays the first
            same_kind.pop(key, None)
        same_kind[key] = item
    first = next(iter(merged[GOAL]), "")
    merged[CONSTRAINTS] = {key: item for key, item in merged[CONSTRAINTS].items() if key not in first}
    merged[IN_PROGRESS] = {key: item for key, item in merged[IN_PROGRESS].items() if key not in merged[DONE]}
    outline = {kind: list(same_kind.values()) for kind, same_kind in merged.items()}
    outline[ERRORS] = outline[ERRORS][-max(tool_calls.MAX_ERRORS, sum(item.kind == ERRORS for item in items)) :]
    return outline


def _carry_over(item: Item, replaced: set[str], finished: list[frozenset[str]]) -> Item | None:
    """Return an item of an earlier summary as it stands now, or None if it is settled."""
    kind, text, weight = item
    state = next(filter(text.startswith, _STATES), "")
    if state == states.WORKING and states.ANSWER in replaced:
        return Item(DONE, "Answered: " + text.removeprefix(state), 2.0)
    if state == states.ANSWER and replaced & {states.ANSWER, states.STATEMENT}:
        return Item(DONE, truncate(text.removeprefix(state).strip(OPEN + CLOSE), 240), 1.0)
    if state:
        is_settled = state in replaced or state in states.SHORT_LIVED
        weight += 0.1 if state in (states.WORKING, states.ANSWER) else 2.0
        return None if is_settled else Item(kind, text, weight)
    if kind in (IN_PROGRESS, NEXT_STEPS) and _is_finished(_words(text), finished):
        return Item(DONE, text, 0.5) if kind == IN_PROGRESS else None
    if kind == BLOCKED and text.startswith("`") and replaced & {states.ANSWER, states.RAN}:
        return None  # if it still failed, it would be reported again
    return Item(kind, truncate(text, 160) if kind == DONE else text, weight + _OLD_WEIGHTS.get(kind, 0.0))


def _is_finished(words: frozenset[str], finished: list[frozenset[str]]) -> bool:
    """Return whether something reported as done has most of these words."""
    needed = max(0.7 * len(words), min(2, len(words)))
    return bool(words) and any(len(words & report) >= needed for report in finished)


def _key(item: Item) -> str:
    """Return what two reports of the same thing have in common."""
    if item.kind == ERRORS:
        return tool_calls.error_key(item.text.partition(" ← ")[0])
    return re.sub(r"[\W_]+", "", item.text.casefold())[:160]


# --- ranking and fitting --------------------------------------------------------------------


def _rank_items(merged: dict[str, list[Item]], focus_words: frozenset[str]) -> list[_Ranked]:
    """Return the items, the most important first."""
    ranked: list[_Ranked] = []
    for kind, items in reversed(merged.items()):
        _, _, base, step = KINDS[kind]
        steps: Counter[float] = Counter()  # per weight: items of one weight do not demote those of another
        for index, item in reversed([*enumerate(items)]):
            rank = base + step * steps[item.weight] + _PER_WEIGHT * item.weight
            if kind == GOAL and index == 0:
                rank = 0.0
            elif kind == GOAL and steps[item.weight] and len(item.text) < 16 and item.text[1:-1].isascii():
                rank += 12.0  # "continue", "yes"
            steps[item.weight] += 1
            ranked.append((0.3 * rank if _is_about(item.text, focus_words) else rank, -len(ranked), item))
    return sorted(ranked)[:_MAX_ITEMS]


def _fit(ranked: Sequence[_Ranked], strategy: str, ops: FileOps, limit: int, count: TokenCounter) -> str:
    """Return as much as fits: the frame, the files, then items by rank."""
    frame = write(strategy, {}, NO_OPS, 0, 0)
    rows = [row for row in frame.splitlines() if row.startswith("#")]
    if count(frame) > limit:
        return "\n".join(rows[: _most(len(rows), lambda n: count("\n".join(rows[:n])) <= limit)])
    room = max(count(frame), limit - max(_GOAL_ROOM, int(limit * _MIN_ITEM_SHARE)))
    modified = _most(min(len(ops.modified), limit), lambda n: count(write(strategy, {}, ops, 0, n)) <= room)
    room = count(frame) + int(limit * _READ_SHARE)
    reads = _most(min(len(ops.read), MAX_LISTED_READS), lambda n: count(write(strategy, {}, ops, n, 0)) <= room)
    essential = sum(rank <= _ESSENTIAL for rank, _, _ in ranked)

    def render(number: int, width: int) -> str:
        outline: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for _, item in sorted((position, item) for _, position, item in ranked[:number]):
            outline[item.kind].append(truncate(item.text, width))
        return write(strategy, outline, ops, reads, modified)

    for width in (2_000, 80, 40):
        number = _most(len(ranked), lambda n, width=width: count(render(n, width)) <= limit)  # type: ignore[misc]
        if number >= essential:
            break
    return render(number, width)


def _most(total: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `total` that fits, as all smaller ones do."""
    return bisect_left(range(total), True, key=lambda n: not fits(n + 1))
