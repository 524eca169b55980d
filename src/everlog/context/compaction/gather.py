"""What was said in a session, as items for a summary, oldest first.

Each function looks at one aspect and reads what was said once. Text is quoted when it is found,
so nothing behind this module handles raw text. The ends of each text are read, and in all so
many characters, the newest first, and how it all began.
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
    calls_of,
    errors,
    failing,
    last_calls,
    milestones,
    shown,
    tasks,
)
from everlog.context.compaction.failure_signs import ends_of
from everlog.context.compaction.file_operations import shown_path
from everlog.context.compaction.outline import (
    ABOUT,
    ANSWER,
    ANSWER_IT,
    CWD,
    FACTS,
    FOCUS,
    GO_ON,
    LATELY,
    LINKS,
    NAMES,
    QUESTION,
    STATEMENT,
    WAIT,
    WORKING,
    Item,
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
from everlog.context.compaction.quoting import cut, plain, quote
from everlog.model import Message

_SCANNED_IN_ALL = 1_000_000
_HEAD, _TAIL = 3_000, 1_500  # of one text
_OPENING = 100  # messages whose requests are read in any case: the first goal, the first rules
WISH = 1.5  # weight of what should be against what must be
_REPORTS = 1_000  # of finished work, to compare open items with
_SENTENCES = 60  # of one text
_CUT_SHORT = ("aborted", "error", "max_tokens", "length")


class Findings(NamedTuple):
    """Everything found, and what it says about items of an earlier summary."""

    items: list[Item]
    answers: int  # requests that were answered
    finished: list[frozenset[str]]  # the words of what was last reported as done
    succeeded: frozenset[str]  # commands that ran without error


def gather(messages: Sequence[Message], focus: str = "") -> Findings:
    """Read the messages."""
    calls = list(calls_of(messages))
    said = _said(messages)
    requests = [one for one in said if one.role == "user"]
    answers = [one for one in said if one.role == "assistant" and one.final]
    asked_at = requests[-1].at if requests else -1
    answer_at = answers[-1].at if answers else -1
    answered = answer_at > asked_at and (not calls or calls[-1].at < answer_at)
    listed = tasks(calls)
    done = [*_turns(said), *milestones(calls), *_statements(said)]
    items = [
        *(Item(GOAL, quote(one.text, 400)) for one in requests),
        *_people(requests),
        *done,
        *listed,
        *failing([call for call in calls if call.at >= asked_at], answered=answered),
        *_stuck(said),
        *_decisions(said),
        *_steps(said, answered),
        *_facts(messages, said),
        *last_calls(calls),
        *_last_words(said),
        *errors(calls),
        *_focused(said, calls, focus),
    ]
    if requests and not answered:
        items.append(Item(IN_PROGRESS, WORKING + quote(requests[-1].text, 160)))
    return Findings(
        items=[item for item in items if item.text],
        answers=len(answers),
        finished=[words(i.text) for i in (*done, *listed) if i.kind == DONE][-_REPORTS:],
        succeeded=frozenset(shown(call) for call in calls if call.command and not call.failed),
    )


def words(text: str) -> frozenset[str]:
    """The words of an item by which it is recognised when it comes again."""
    return frozenset(re.findall(r"[^\W_]{3,}|[^\W\x00-\x7f]{2,}", text.casefold()))


class _Said(NamedTuple):
    at: int
    role: str
    text: str
    final: bool  # an assistant's words that no call follows


def _said(messages: Sequence[Message]) -> list[_Said]:
    """What people typed and agents said, each bounded; old words past a total are skipped."""
    left = _SCANNED_IN_ALL
    found = []
    interrupted = False
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        opening = at < _OPENING and message.role == "user"
        if message.role == "toolResult" or (left <= 0 and not opening):
            continue
        text = message.text.strip()
        if not text:
            continue
        final = not message.tool_calls and message.stop_reason not in _CUT_SHORT
        if message.role == "user":
            interrupted = interrupted or text.startswith("[Request interrupted")
            text = clues.typed(text)
        else:
            final = final and not interrupted and not clues.is_plan(text)
            interrupted = False
        if len(text) > _HEAD + _TAIL:
            text = f"{text[:_HEAD]}\n{text[-_TAIL:]}"
        left -= len(text)
        if text:
            found.append(_Said(at, message.role, text, final))
    return found[::-1]


# --- one aspect each ------------------------------------------------------------------------


def _people(requests: Iterable[_Said]) -> Iterator[Item]:
    """Rules that users set, and who is who."""
    for one in requests:
        rules = 0
        for sentence in islice(clues.sentences(one.text, casual=True), _SENTENCES):
            if len(sentence) > 600:
                continue
            if clues.is_about(sentence):
                yield Item(ABOUT, quote(sentence, 220))
            elif rules < 6 and (clues.is_rule(sentence) or clues.is_wish(sentence)):
                rules += 1
                weight = 0.0 if clues.is_rule(sentence) else WISH
                yield Item(CONSTRAINTS, quote(sentence, 240), weight)


def _turns(said: Sequence[_Said]) -> Iterator[Item]:
    """Answers with their requests, but for the last one, which is told longer elsewhere."""
    left = sum(one.role == "assistant" and one.final for one in said)
    request = ""
    for one in said:
        if one.role == "user":
            request = f"{quote(one.text, 90)} → "
        elif one.final:
            left -= 1
            if left:
                yield Item(DONE, request + plain(one.text, 600 if left < 5 else 240), 1.0)
            request = ""


def _statements(said: Iterable[_Said]) -> Iterator[Item]:
    """What agents reported as finished in passing."""
    for one in said:
        if one.role != "user":
            for line in one.text.splitlines():
                box = clues.CHECKBOX.match(line)
                if box:
                    ticked = box[1] in "xX"
                    yield Item(DONE if ticked else IN_PROGRESS, plain(box[2], 160), 0.5)
            if not one.final:
                for sentence in clues.sentences(one.text[:600]):
                    if clues.is_done(sentence):
                        yield Item(DONE, plain(sentence, 160), 2.0)


def _stuck(said: Sequence[_Said]) -> Iterator[Item]:
    """What stands in the way in the agent's own last words."""
    if said and said[-1].role == "assistant" and said[-1].final:
        for sentence in clues.sentences(said[-1].text):
            if clues.is_stuck(sentence):
                yield Item(BLOCKED, quote(sentence, 220))


def _decisions(said: Iterable[_Said]) -> Iterator[Item]:
    for one in said:
        before = ""
        for sentence in islice(clues.sentences(one.text), _SENTENCES):
            made = clues.decision(sentence, before)
            before = sentence
            if made and (one.role == "assistant" or made.doubt == 0):
                told = f"**{plain(made.what, 180).replace('**', '').rstrip('.')}**"
                if made.why:
                    told += f": {plain(made.why, 180).replace('**', '')}"
                yield Item(DECISIONS, told, float(made.doubt))
                before = ""  # it need not be told again as a reason


def _steps(said: Sequence[_Said], answered: bool) -> Iterator[Item]:
    """What the last words announce, or where to go on."""
    if not said:
        return
    last = said[-1]
    if last.role == "user":
        yield Item(NEXT_STEPS, ANSWER_IT)
        return
    announced = [Item(NEXT_STEPS, plain(line, 200)) for line in _announced(last.text)]
    yield from announced
    closing = list(clues.sentences(last.text))[-2:]
    if not answered:
        yield Item(NEXT_STEPS, GO_ON + quote(" ".join(closing), 300))
    elif closing[-1].rstrip("*_ ").endswith(("?", "？")):
        yield Item(NEXT_STEPS, QUESTION + quote(closing[-1], 220))
    elif not announced:
        yield Item(NEXT_STEPS, WAIT)


def _announced(text: str) -> Iterator[str]:
    """Lines that speak of what comes next, and the lists under them."""
    listing = False
    for line in text.splitlines():
        listed = clues.LISTED.match(line)
        if listed and listing:
            yield listed[1]
        elif line.strip():
            listing = len(line) < 200 and clues.is_next(line)
            heads_a_list = line.startswith("#") or line.rstrip().endswith((":", "：", "**"))
            if listing and not heads_a_list:
                yield line


def _facts(messages: Sequence[Message], said: Sequence[_Said]) -> Iterator[Item]:
    """The place, and names and links to find one's way."""
    cwd = next((m.cwd for m in reversed(messages) if m.cwd), "")
    if cwd:
        yield Item(FACTS, CWD + cut(shown_path(cwd), 200), 0.2)
    names: Counter[str] = Counter()
    links: dict[str, None] = {}
    for one in said:
        if one.role == "assistant":
            names.update(set(clues.NAME.findall(one.text)))
        for link in clues.LINK.findall(one.text):
            links.pop(link, None)
            links[link] = None
    if links:
        shown = ", ".join(plain(link.rstrip(".,;:"), 160) for link in list(links)[-6:])
        yield Item(FACTS, LINKS + shown, 2.0)
    often = [plain(name, 60) for name, n in names.most_common(24) if n > 1]
    if often:
        yield Item(FACTS, NAMES + ", ".join(f"`{name}`" for name in often), 2.5)


def _last_words(said: Sequence[_Said]) -> Iterator[Item]:
    """The agent's last words; in the middle of a turn also those on the way there."""
    spoken = [one for one in said if one.role == "assistant"]
    if not spoken:
        return
    last = spoken[-1]
    if not last.final:
        for one in spoken[-9:-1]:
            yield Item(FACTS, LATELY + quote(one.text, 160), 1.0)
    yield Item(FACTS, (ANSWER if last.final else STATEMENT) + quote(last.text, 900), 0.1)


def _focused(said: Sequence[_Said], calls: Sequence[Call], focus: str) -> Iterator[Item]:
    """Sentences and lines about what the user asked to keep in mind, the newest ones."""
    if not focus.strip():
        return
    yield Item(FACTS, FOCUS + quote(focus, 300))
    wanted = words(focus)
    found: dict[str, Item] = {}
    texts = [one.text for one in said] + [
        ends_of(c.result)[:4_000] for c in calls[-200:] if c.result
    ]
    for text in reversed(texts):
        for sentence in clues.sentences(text):
            if len(found) < 14 and len(sentence) < 600 and about(sentence, wanted):
                told = quote(sentence, 220)
                found.setdefault(told.casefold(), Item(FACTS, told, 0.3))
    yield from list(found.values())[::-1]


def about(text: str, wanted: frozenset[str]) -> bool:
    """Whether a text has the words wanted, or of many words half."""
    lower = text.casefold()
    return bool(wanted) and 2 * sum(word in lower for word in wanted) >= min(len(wanted), 4)
