"""The summary items of a session, oldest first, from its messages and tool calls.

Each function extracts one aspect and reads the text once. Text is quoted when it is extracted, so
later modules handle no raw text. Only the ends of each text are read, up to a total number of
characters: the newest texts first, and always the opening of the session.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from everlog.context.compaction import clues
from everlog.context.compaction.calls import (
    Call,
    collect_errors,
    collect_tasks,
    describe_call,
    find_failing,
    find_milestones,
    iterate_calls,
    last_calls,
)
from everlog.context.compaction.failure_signs import take_ends
from everlog.context.compaction.file_operations import format_path
from everlog.context.compaction.outline import (
    ABOUT,
    ANSWER,
    ANSWER_LATEST,
    AWAIT_REQUEST,
    CWD,
    EARLIER_WORDS,
    FACTS,
    FOCUS,
    GO_ON,
    LINKS,
    NAMES,
    QUESTION,
    STATEMENT,
    WORKING,
    Item,
)
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import one_line, quote, truncate
from everlog.model import Message

_MAX_SCANNED = 1_000_000  # characters
_HEAD, _TAIL = 3_000, 1_500  # characters of one text
_OPENING = 100  # messages whose requests are always read: the first goal, the first rules
WISH = 1.5  # weight of a wish; a rule has 0
_MAX_REPORTS = 1_000  # of finished work, to compare open items with
_MAX_SENTENCES = 60  # of one text
_CUT_SHORT = ("aborted", "error", "max_tokens", "length")


class Findings(NamedTuple):
    """The items found, and what they say about items of an earlier summary."""

    items: list[Item]
    answers: int  # requests that were answered
    finished_words: list[frozenset[str]]  # of each item last reported as done
    succeeded_commands: frozenset[str]  # commands that ran without error


def gather(messages: Sequence[Message], focus: str = "") -> Findings:
    """Collect the summary items of the messages."""
    calls = list(iterate_calls(messages))
    utterances = _read_utterances(messages)
    requests = [u for u in utterances if u.role == "user"]
    answers = [u for u in utterances if u.role == "assistant" and u.final]
    request_position = requests[-1].position if requests else -1
    answer_position = answers[-1].position if answers else -1
    last_call = calls[-1].position if calls else -1
    answered = answer_position > max(request_position, last_call)
    task_items = collect_tasks(calls)
    done = [*_answered_requests(utterances), *find_milestones(calls), *_completed_work(utterances)]
    items = [
        *(Item(GOAL, quote(request.text, 400)) for request in requests),
        *_user_rules(requests),
        *done,
        *task_items,
        *find_failing([c for c in calls if c.position >= request_position], answered=answered),
        *_blockers(utterances),
        *_decisions(utterances),
        *_next_steps(utterances, answered),
        *_environment(messages, utterances),
        *last_calls(calls),
        *_last_words(utterances),
        *collect_errors(calls),
        *_focus_items(utterances, calls, focus),
    ]
    if requests and not answered:
        items.append(Item(IN_PROGRESS, WORKING + quote(requests[-1].text, 160)))
    finished = [item_words(item.text) for item in (*done, *task_items) if item.kind == DONE]
    return Findings(
        items=[item for item in items if item.text],
        answers=len(answers),
        finished_words=finished[-_MAX_REPORTS:],
        succeeded_commands=frozenset(describe_call(c) for c in calls if c.command and not c.failed),
    )


def item_words(text: str) -> frozenset[str]:
    """Return the words by which an item is recognised when it appears again."""
    return frozenset(re.findall(r"[^\W_]{3,}|[^\W\x00-\x7f]{2,}", text.casefold()))


class _Utterance(NamedTuple):
    position: int
    role: str
    text: str
    final: bool  # of an assistant: no call follows


def _read_utterances(messages: Sequence[Message]) -> list[_Utterance]:
    """Return what people typed and agents wrote, each bounded, newest first up to a total."""
    unscanned = _MAX_SCANNED
    utterances = []
    interrupted = False
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        opening = position < _OPENING and message.role == "user"
        if message.role == "toolResult" or (unscanned <= 0 and not opening):
            continue
        text = message.text.strip()
        if not text:
            continue
        final = not message.tool_calls and message.stop_reason not in _CUT_SHORT
        if message.role == "user":
            interrupted = interrupted or text.startswith("[Request interrupted")
            text = clues.typed_text(text)
        else:
            final = final and not interrupted and not clues.is_plan(text)
            interrupted = False
        if len(text) > _HEAD + _TAIL:
            text = f"{text[:_HEAD]}\n{text[-_TAIL:]}"
        unscanned -= len(text)
        if text:
            utterances.append(_Utterance(position, message.role, text, final))
    return utterances[::-1]


# --- one aspect each ------------------------------------------------------------------------


def _user_rules(requests: Iterable[_Utterance]) -> Iterator[Item]:
    """Yield the rules that users set, and who they are."""
    for request in requests:
        rules = 0
        for sentence in islice(clues.sentences(request.text, casual=True), _MAX_SENTENCES):
            if len(sentence) > 600:
                continue
            if clues.is_about_person(sentence):
                yield Item(ABOUT, quote(sentence, 220))
            elif rules < 6 and (clues.is_rule(sentence) or clues.is_wish(sentence)):
                rules += 1
                weight = 0.0 if clues.is_rule(sentence) else WISH
                yield Item(CONSTRAINTS, quote(sentence, 240), weight)


def _answered_requests(utterances: Sequence[_Utterance]) -> Iterator[Item]:
    """Yield answers with their requests, except the last, which has a longer item of its own."""
    remaining = sum(u.role == "assistant" and u.final for u in utterances)
    request = ""
    for utterance in utterances:
        if utterance.role == "user":
            request = f"{quote(utterance.text, 90)} → "
        elif utterance.final:
            remaining -= 1
            if remaining:
                width = 600 if remaining < 5 else 240
                yield Item(DONE, request + one_line(utterance.text, width), 1.0)
            request = ""


def _completed_work(utterances: Iterable[_Utterance]) -> Iterator[Item]:
    """Yield what agents reported as finished in passing."""
    for utterance in utterances:
        if utterance.role != "user":
            for line in utterance.text.splitlines():
                box = clues.CHECKBOX.match(line)
                if box:
                    ticked = box[1] in "xX"
                    yield Item(DONE if ticked else IN_PROGRESS, one_line(box[2], 160), 0.5)
            if not utterance.final:
                for sentence in clues.sentences(utterance.text[:600]):
                    if clues.is_done(sentence):
                        yield Item(DONE, one_line(sentence, 160), 2.0)


def _blockers(utterances: Sequence[_Utterance]) -> Iterator[Item]:
    """Yield the obstacles named in the agent's last answer."""
    if utterances and utterances[-1].role == "assistant" and utterances[-1].final:
        for sentence in clues.sentences(utterances[-1].text):
            if clues.is_stuck(sentence):
                yield Item(BLOCKED, quote(sentence, 220))


def _decisions(utterances: Iterable[_Utterance]) -> Iterator[Item]:
    for utterance in utterances:
        previous = ""
        for sentence in islice(clues.sentences(utterance.text), _MAX_SENTENCES):
            decision = clues.find_decision(sentence, previous)
            previous = sentence
            if decision and (utterance.role == "assistant" or decision.doubt == 0):
                text = f"**{one_line(decision.choice, 180).replace('**', '').rstrip('.')}**"
                if decision.reason:
                    text += f": {one_line(decision.reason, 180).replace('**', '')}"
                yield Item(DECISIONS, text, float(decision.doubt))
                previous = ""  # do not repeat it as a reason


def _next_steps(utterances: Sequence[_Utterance], answered: bool) -> Iterator[Item]:
    """Yield the steps that the last answer announces, or where to continue."""
    if not utterances:
        return
    last = utterances[-1]
    if last.role == "user":
        yield Item(NEXT_STEPS, ANSWER_LATEST)
        return
    announced = [Item(NEXT_STEPS, one_line(line, 200)) for line in _announced_steps(last.text)]
    yield from announced
    closing = list(clues.sentences(last.text))[-2:]
    if not answered:
        yield Item(NEXT_STEPS, GO_ON + quote(" ".join(closing), 300))
    elif closing[-1].rstrip("*_ ").endswith(("?", "？")):
        yield Item(NEXT_STEPS, QUESTION + quote(closing[-1], 220))
    elif not announced:
        yield Item(NEXT_STEPS, AWAIT_REQUEST)


def _announced_steps(text: str) -> Iterator[str]:
    """Yield lines about what comes next, and the lists under them."""
    in_list = False
    for line in text.splitlines():
        item = clues.LIST_ITEM.match(line)
        if item and in_list:
            yield item[1]
        elif line.strip():
            in_list = len(line) < 200 and clues.is_next(line)
            is_heading = line.startswith("#") or line.rstrip().endswith((":", "：", "**"))
            if in_list and not is_heading:
                yield line


def _environment(messages: Sequence[Message], utterances: Sequence[_Utterance]) -> Iterator[Item]:
    """Yield the working directory, frequent names and links."""
    cwd = next((m.cwd for m in reversed(messages) if m.cwd), "")
    if cwd:
        yield Item(FACTS, CWD + truncate(format_path(cwd), 200), 0.2)
    names: Counter[str] = Counter()
    links: dict[str, None] = {}
    for utterance in utterances:
        if utterance.role == "assistant":
            names.update(set(clues.CODE_NAME.findall(utterance.text)))
        for link in clues.LINK.findall(utterance.text):
            links.pop(link, None)
            links[link] = None
    if links:
        recent_links = ", ".join(one_line(link.rstrip(".,;:"), 160) for link in list(links)[-6:])
        yield Item(FACTS, LINKS + recent_links, 2.0)
    frequent = [one_line(name, 60) for name, n in names.most_common(24) if n > 1]
    if frequent:
        yield Item(FACTS, NAMES + ", ".join(f"`{name}`" for name in frequent), 2.5)


def _last_words(utterances: Sequence[_Utterance]) -> Iterator[Item]:
    """Yield the agent's last words; in the middle of a turn also those before."""
    answers = [u for u in utterances if u.role == "assistant"]
    if not answers:
        return
    last = answers[-1]
    if not last.final:
        for utterance in answers[-9:-1]:
            yield Item(FACTS, EARLIER_WORDS + quote(utterance.text, 160), 1.0)
    yield Item(FACTS, (ANSWER if last.final else STATEMENT) + quote(last.text, 900), 0.1)


def _focus_items(utterances: Sequence[_Utterance], calls: Sequence[Call], focus: str) -> Iterator[Item]:
    """Yield the newest sentences and lines about what the user asked to keep."""
    if not focus.strip():
        return
    yield Item(FACTS, FOCUS + quote(focus, 300))
    focus_words = item_words(focus)
    items: dict[str, Item] = {}
    texts = [utterance.text for utterance in utterances]
    texts += [take_ends(call.result)[:4_000] for call in calls[-200:] if call.result]
    for text in reversed(texts):
        for sentence in clues.sentences(text):
            if len(items) < 14 and len(sentence) < 600 and is_about(sentence, focus_words):
                quoted = quote(sentence, 220)
                items.setdefault(quoted.casefold(), Item(FACTS, quoted, 0.3))
    yield from list(items.values())[::-1]


def is_about(text: str, focus_words: frozenset[str]) -> bool:
    """Return whether a text has the focus words, or half of them if they are many."""
    lower = text.casefold()
    matches = sum(word in lower for word in focus_words)
    return bool(focus_words) and 2 * matches >= min(len(focus_words), 4)
