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
from everlog.context.compaction.calls import MAX_ERRORS, Call
from everlog.context.compaction.dialogue import Utterance
from everlog.context.compaction.file_operations import MAX_LISTED_READS, NO_OPS, FileOps, format_path
from everlog.context.compaction.outline import ERRORS, FACTS, KINDS, OUTPUT, SHAPES, Item, Shape, parse
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import CLOSE, OPEN, quote, sentences, truncate
from everlog.context.tokens import TokenCounter, estimate_text
from everlog.model import Message

WORKING, FOCUS, CWD = "Working on: ", "Focus: ", "Working directory: "
# Items with these prefixes describe a state: a later one replaces an earlier one, and the
# short-lived ones are not carried over. Names were written by earlier versions.
_SHORT_LIVED = (
    *(tool_calls.UNANSWERED, FOCUS, dialogue.GO_ON, dialogue.QUESTION),
    *(dialogue.ANSWER_LATEST, dialogue.AWAIT_REQUEST, "Names: "),
)
_STATES = (
    *(WORKING, CWD, tool_calls.TESTS, tool_calls.EDITS, tool_calls.COMMAND, *_SHORT_LIVED),
    *(dialogue.ANSWER, dialogue.STATEMENT, dialogue.EARLIER_WORDS, dialogue.LINKS),
)
_PER_WEIGHT = 6.0  # ranks
_MAX_ITEMS = 400
_MAX_EARLIER = 150  # items from each end of a kind in an earlier summary
_ESSENTIAL = 3.0  # up to this rank an item is shortened rather than dropped
_READ_SHARE, _MIN_ITEM_SHARE = 0.12, 0.25
_GOAL_ROOM = 40  # tokens besides the headings, so that the first request always fits
_Ranked = tuple[float, int, Item]  # rank, and the position among all items in the order of the summary


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
    items = _gather(messages, focus)
    shape = SHAPES.get(strategy, SHAPES["structured"])
    return _fit(_rank_items(_merge(parse(previous), items), _words(focus)), shape, ops, limit, count)


def _gather(messages: Sequence[Message], focus: str) -> list[Item]:
    """Collect the summary items of the messages, oldest first."""
    calls = tool_calls.read_calls(messages)
    utterances = dialogue.read_utterances(messages)
    requests = [u for u in utterances if u.role == "user"]
    last_request = requests[-1].position if requests else -1
    last_answer = max((u.position for u in utterances if u.final), default=-1)
    answered = last_answer > max(last_request, calls[-1].position if calls else -1)
    cwd = next((message.cwd for message in reversed(messages) if message.cwd), "")
    items = [
        *(Item(GOAL, quote(request.text, 400)) for request in requests),
        *dialogue.find_rules(requests),
        *dialogue.find_done(utterances),
        *tool_calls.find_work(calls),
        *tool_calls.collect_tasks(calls),
        *([] if answered else tool_calls.find_failing([c for c in calls if c.position >= last_request])),
        *dialogue.find_decisions(utterances),
        *([Item(FACTS, CWD + truncate(format_path(cwd), 200), 0.2)] if cwd else ()),
        *tool_calls.last_calls(calls),
        *dialogue.find_state(utterances, answered),
        *tool_calls.collect_errors(calls),
        *(_focus_items(utterances, calls, focus) if focus.strip() else ()),
        *([Item(IN_PROGRESS, WORKING + quote(requests[-1].text, 160))] if requests and not answered else ()),
    ]
    return [item for item in items if item.text]


def _focus_items(utterances: Sequence[Utterance], calls: Sequence[Call], focus: str) -> Iterator[Item]:
    """Yield the newest sentences and lines about what the user asked to keep."""
    yield Item(FACTS, FOCUS + quote(focus, 300))
    texts = [utterance.text for utterance in utterances]
    texts += [tool_calls.take_ends(call.result)[:4_000] for call in calls[-200:] if call.result]
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
    merged: dict[str, list[Item]] = {kind: [] for kind in KINDS if kind != OUTPUT}
    replaced = {state for state in _STATES if any(item.text.startswith(state) for item in items)}
    finished = [_words(item.text) for item in items if item.kind == DONE][-1_000:]
    for kind in merged:
        old = earlier[kind]
        for text in old if len(old) <= 2 * _MAX_EARLIER else old[:_MAX_EARLIER] + old[-_MAX_EARLIER:]:
            if item := _carry_over(kind, text, replaced, finished):
                merged[item.kind].append(item)
    # In a long earlier summary the important facts come first.
    merged[FACTS] = [item._replace(weight=item.weight + 0.08 * n) for n, item in enumerate(merged[FACTS])]
    new_errors = sum(item.kind == ERRORS for item in items)
    merged[ERRORS] = merged[ERRORS][max(len(merged[ERRORS]) + new_errors - MAX_ERRORS, 0) :]
    for item in items:
        merged[item.kind].append(item)
    done = {_key(item) for item in merged[DONE]}
    merged[IN_PROGRESS] = [item for item in merged[IN_PROGRESS] if _key(item) not in done]
    first = _key(merged[GOAL][0]) if merged[GOAL] else ""
    merged[CONSTRAINTS] = [item for item in merged[CONSTRAINTS] if _key(item) not in first]
    return {kind: _distinct(items) for kind, items in merged.items()}


def _carry_over(kind: str, text: str, replaced: set[str], finished: list[frozenset[str]]) -> Item | None:
    """Return an item of an earlier summary as it stands now, or None if it is settled."""
    state = next((prefix for prefix in _STATES if text.startswith(prefix)), "")
    if state == WORKING and dialogue.ANSWER in replaced:
        return Item(DONE, "Answered: " + text.removeprefix(WORKING), 2.0)
    if state == dialogue.ANSWER and replaced & {dialogue.ANSWER, dialogue.STATEMENT}:
        return Item(DONE, truncate(text.removeprefix(state).strip(OPEN + CLOSE), 240), 1.0)
    if state:
        is_settled = state in replaced or state in _SHORT_LIVED
        return None if is_settled else Item(kind, text, 0.1 if state in (WORKING, dialogue.ANSWER) else 2.0)
    if kind in (IN_PROGRESS, NEXT_STEPS) and _is_finished(_words(text), finished):
        return Item(DONE, text, 0.5) if kind == IN_PROGRESS else None
    if kind == BLOCKED and text.startswith("`") and replaced & {dialogue.ANSWER, tool_calls.COMMAND}:
        return None  # if it still failed, it would be reported again
    weight = {IN_PROGRESS: 0.2, NEXT_STEPS: 0.2, BLOCKED: 0.5, FACTS: 0.2, DONE: 1.0}.get(kind, 0.0)
    return Item(kind, truncate(text, 160) if kind == DONE else text, weight)


def _is_finished(words: frozenset[str], finished: list[frozenset[str]]) -> bool:
    """Return whether something reported as done has most of these words."""
    needed = max(0.7 * len(words), min(2, len(words)))
    return bool(words) and any(len(words & report) >= needed for report in finished)


def _key(item: Item) -> str:
    if item.kind == ERRORS:
        return tool_calls.error_key(item.text.partition(" ← ")[0])
    return re.sub(r"[\W_]+", "", item.text.casefold())[:160]


def _distinct(items: list[Item]) -> list[Item]:
    """Return the last of equal items, but the first goal in its place."""
    last: dict[str, Item] = {}
    for item in items:
        last.pop(key := _key(item), None)
        last[key] = item
    if items and items[0].kind == GOAL:
        last.pop(_key(items[0]))
        return [items[0], *last.values()]
    return list(last.values())


# --- ranking --------------------------------------------------------------------------------


def _rank_items(outline: dict[str, list[Item]], focus_words: frozenset[str]) -> list[_Ranked]:
    """Return the items, the most important first."""
    ranked: list[_Ranked] = []
    position = 0
    for kind, items in outline.items():
        _, _, base, step = KINDS[kind]
        steps: Counter[float] = Counter()  # per weight: items of one weight do not demote those of another
        for index in range(len(items) - 1, -1, -1):
            item = items[index]
            rank = base + step * steps[item.weight] + _PER_WEIGHT * item.weight
            if kind == GOAL and index == 0:
                rank = 0.0
            elif kind == GOAL and steps[item.weight] and len(item.text) < 16 and item.text[1:-1].isascii():
                rank += 12.0  # "continue", "yes"
            steps[item.weight] += 1
            ranked.append((0.3 * rank if _is_about(item.text, focus_words) else rank, position + index, item))
        position += len(items)
    return sorted(ranked)[:_MAX_ITEMS]


# --- fitting --------------------------------------------------------------------------------


def _fit(ranked: Sequence[_Ranked], shape: Shape, ops: FileOps, limit: int, count: TokenCounter) -> str:
    """Return as much as fits: the frame, the files, then items by rank."""
    frame = shape({}, NO_OPS, 0, 0)
    rows = [row for row in frame.splitlines() if row.startswith("#")]
    if count(frame) > limit:
        return "\n".join(rows[: _most(len(rows), lambda n: count("\n".join(rows[:n])) <= limit)])
    room = max(count(frame), limit - max(_GOAL_ROOM, int(limit * _MIN_ITEM_SHARE)))
    modified = _most(min(len(ops.modified), limit), lambda n: count(shape({}, ops, 0, n)) <= room)
    room = count(frame) + int(limit * _READ_SHARE)
    reads = _most(min(len(ops.read), MAX_LISTED_READS), lambda n: count(shape({}, ops, n, 0)) <= room)
    essential = sum(rank <= _ESSENTIAL for rank, _, _ in ranked)

    def render(number: int, width: int) -> str:
        outline: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for _, item in sorted((position, item) for _, position, item in ranked[:number]):
            outline[item.kind].append(truncate(item.text, width))
        return shape(outline, ops, reads, modified)

    for width in (2_000, 80, 40):
        number = _most(len(ranked), lambda n, width=width: count(render(n, width)) <= limit)  # type: ignore[misc]
        if number >= essential:
            break
    return render(number, width)


def _most(total: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `total` that fits, as all smaller ones do."""
    return bisect_left(range(total), True, key=lambda n: not fits(n + 1))
