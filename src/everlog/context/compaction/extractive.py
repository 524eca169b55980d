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
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from everlog.context.compaction import calls as tool_calls
from everlog.context.compaction import dialogue
from everlog.context.compaction.calls import MAX_ERRORS, Call, describe_call
from everlog.context.compaction.dialogue import Utterance
from everlog.context.compaction.file_operations import MAX_LISTED_READS, NO_OPS, FileOps, format_path
from everlog.context.compaction.outline import ABOUT, ERRORS, FACTS, KINDS, OUTPUT, SHAPES, Item, Shape, parse
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import CLOSE, OPEN, quote, sentences, shorten, truncate
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
}
_PER_WEIGHT = 6.0
_MAX_ITEMS = {ABOUT: 20, DONE: 60, ERRORS: 2 * MAX_ERRORS}  # others: 40
_MAX_EARLIER = 150  # items from each end of a kind in an earlier summary
_ESSENTIAL = 3.0  # up to this rank an item is shortened rather than dropped
_MAX_MISSES = 30  # items that did not fit, until the search for smaller ones ends
_READ_SHARE, _MIN_ITEM_SHARE = 0.12, 0.25
_GOAL_ROOM = 40  # tokens besides the headings, so that the first request always fits
_WIDE = re.compile("[\u2e80-\U0010ffff]")


class Findings(NamedTuple):
    """The items found, and what they say about items of an earlier summary."""

    items: list[Item]
    answers: int  # requests that were answered
    finished_words: list[frozenset[str]]  # of the items last reported as done
    succeeded_commands: tuple[str, ...]  # commands that ran without error


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
    ranked = _rank_items(_merge(parse(previous), _gather(messages, focus)), focus)
    shape = SHAPES.get(strategy, SHAPES["structured"])
    return _fit(ranked, shape, ops, limit, _cautious_counter(count))


def _gather(messages: Sequence[Message], focus: str) -> Findings:
    """Collect the summary items of the messages, oldest first."""
    calls = list(tool_calls.iterate_calls(messages))
    utterances = dialogue.read_utterances(messages)
    requests = [u for u in utterances if u.role == "user"]
    answers = [u.position for u in utterances if u.final]
    last_request = requests[-1].position if requests else -1
    answered = bool(answers) and answers[-1] > max(last_request, calls[-1].position if calls else -1)
    work = [*dialogue.find_done(utterances), *tool_calls.find_milestones(calls), *tool_calls.collect_tasks(calls)]
    cwd = next((message.cwd for message in reversed(messages) if message.cwd), "")
    items = [
        *(Item(GOAL, quote(request.text, 400)) for request in requests),
        *dialogue.find_rules(requests),
        *work,
        *tool_calls.find_failing([c for c in calls if c.position >= last_request], answered=answered),
        *dialogue.find_decisions(utterances),
        *([Item(FACTS, CWD + truncate(format_path(cwd), 200), 0.2)] if cwd else ()),
        *tool_calls.last_calls(calls),
        *dialogue.find_state(utterances, answered),
        *tool_calls.collect_errors(calls),
        *_focus_items(utterances, calls, focus),
        *([Item(IN_PROGRESS, WORKING + quote(requests[-1].text, 160))] if requests and not answered else ()),
    ]
    return Findings(
        items=[item for item in items if item.text],
        answers=len(answers),
        finished_words=[_words(item.text) for item in work if item.kind == DONE][-1_000:],
        succeeded_commands=tuple({describe_call(c) for c in calls if c.command and not c.failed}),
    )


def _focus_items(utterances: Sequence[Utterance], calls: Sequence[Call], focus: str) -> Iterator[Item]:
    """Yield the newest sentences and lines about what the user asked to keep."""
    if not focus.strip():
        return
    yield Item(FACTS, FOCUS + quote(focus, 300))
    texts = [utterance.text for utterance in utterances]
    texts += [tool_calls.take_ends(call.result)[:4_000] for call in calls[-200:] if call.result]
    quotes: dict[str, None] = {}
    for text in reversed(texts):
        for sentence in sentences(text):
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


def _merge(earlier: dict[str, list[str]], findings: Findings) -> dict[str, list[Item]]:
    """Merge old items before new ones, without duplicates and settled items."""
    merged: dict[str, list[Item]] = {kind: [] for kind in KINDS if kind != OUTPUT}
    replaced = {state for state in _STATES if any(item.text.startswith(state) for item in findings.items)}
    for kind in merged:
        old = earlier[kind]
        for text in old if len(old) <= 2 * _MAX_EARLIER else old[:_MAX_EARLIER] + old[-_MAX_EARLIER:]:
            if item := _carry_over(kind, text, findings, replaced):
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
    if state == WORKING and findings.answers:
        return Item(DONE, "Answered: " + text.removeprefix(WORKING), 2.0)
    if state in (dialogue.ANSWER, dialogue.STATEMENT):
        if not replaced & {dialogue.ANSWER, dialogue.STATEMENT}:
            return Item(kind, text, 0.1)
        answer = shorten(text.removeprefix(state).strip(OPEN + CLOSE), 240)
        return Item(DONE, answer, 1.0) if state == dialogue.ANSWER else None
    if state:
        return (
            None if state in replaced or state in _SHORT_LIVED else Item(kind, text, 0.0 if state == WORKING else 2.0)
        )
    if kind in (IN_PROGRESS, NEXT_STEPS) and _is_finished(text, findings):
        return Item(DONE, text, 0.5) if kind == IN_PROGRESS else None
    if kind == BLOCKED and text.startswith("`") and (findings.answers or text.startswith(findings.succeeded_commands)):
        return None
    weight = {IN_PROGRESS: 0.2, NEXT_STEPS: 0.2, BLOCKED: 0.5, FACTS: 0.2, DONE: 1.0}.get(kind, 0.0)
    return Item(kind, shorten(text, 160) if kind == DONE else text, weight)


def _is_finished(text: str, findings: Findings) -> bool:
    """Return whether something reported as done has most words of this item."""
    expected = _words(text)
    needed = max(0.7 * len(expected), min(2, len(expected)))
    return bool(expected) and any(len(expected & report) >= needed for report in findings.finished_words)


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


class _Ranked(NamedTuple):
    rank: float
    position: int  # among all items, in the order of the summary
    item: Item


def _rank_items(outline: dict[str, list[Item]], focus: str) -> list[_Ranked]:
    """Return the items, the most important first."""
    focus_words = _words(focus)
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
            if _is_about(item.text, focus_words):
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
    rows = text.splitlines()
    if count(text) > limit:
        rows = [row for row in frame.splitlines() if row.startswith("#")]
    while rows and count("\n".join(rows)) > limit:
        rows.pop()
    return "\n".join(rows)


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
