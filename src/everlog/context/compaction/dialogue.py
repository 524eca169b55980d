"""What people and agents said, and the summary items in it: requests, rules, decisions, last state.

A sentence is classified by English words. A false positive is preferred where a miss costs more
(rules), and a miss where noise does (decisions, completion). Requests and answers need no clue, in
any language. Only the ends of each text are read, the newest texts first up to a total number of
characters, and always the opening of the session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from everlog.context.compaction import outline
from everlog.context.compaction.outline import ABOUT, FACTS, Item
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import LIST_ITEM, one_line, quote, sentences, take_ends
from everlog.context.fence import remove_insertions
from everlog.model import Message

_MAX_SCANNED = 1_000_000  # characters
_HEAD, _TAIL = 3_000, 1_500  # characters of one text
_OPENING = 100  # messages whose requests are always read: the first goal, the first rules
_MAX_SENTENCES, _MAX_SENTENCE = 60, 500  # sentences of one text, characters of one
# How whole messages begin that a program wrote.
_INSERTED_START = (
    *("Caveat:", "[Request interrupted", "This session is being continued from a previous", "[Image: source:"),
    *("The conversation history before this point was compacted", "Base directory for this skill:"),
    "<task-notification",
)
_COMMAND = re.compile(r"<command-(name|args)>\s*([^<]*?)\s*</command-\1>")
_RULE = re.compile(
    r"(?i)\b(?:must(?! have been)|prefer|avoid|ensure|forbidden|constraint|requirement|do not|make sure|instead of"
    r"|rather than|at least|at most|no more than|no need|not allowed|stick to|please use)"
    r"|^(?:please |and |ok,? |also,? )*(?:use|no(?! worries| problem| doubt)|stop \w+ing|leave) \w"
)
# These are rules in an order, not in a narrative: "never use it", not "I never saw it".
_ORDER = re.compile(
    r"(?i)(?!(?:\W*+(?:yes|well|so|and|but|oh|ok|okay|thanks)\b)*+\W*+"
    r"(?:i|we|they|he|she|it|that|this|there|you)(?:['’]\w+)?\s(?!want|need|prefer|must|may|can only))"
    r".*\b(?:never|always|don['’]?t|should|shouldn't|only|without|remember|keep)\b"
)
_ABOUT = re.compile(
    r"(?i)\b(?:(?:my|your) name is|call me|i work (?:as|at|for|on|in|with)|i live in|i(?:'?m| am) (?:an?|the|from)"
    r"|i (?:prefer|like|love|hate) (?!(?:that|how|all|it|this|your?)\b)|you are (?:an?|my|the|called)"
    r"|my (?:wife|husband|partner|son|daughter|kids?|team|company|job|role|boss|birthday|time ?zone|pronouns|email))\b"
)
_DECISION = re.compile(
    r"(?i)\b(?:decided|decision|chose|chosen|opted|settled on|go(?:ing)? with|went with|instead of|rather than"
    r"|root cause|let'?s (?:use|go|keep)|switch(?:ed|ing)? (?:to|from)|(?:i|we)'?ll (?:use|keep|stick)|by design)\b"
)
_FINDING = re.compile(r"(?i)\b(?:turns out|the (?:issue|problem|bug|cause|reason|fix) (?:is|was))\b")
_REASON = re.compile(r"(?i),?\s+(?=(?:because|since|so that|instead of|rather than|to avoid)\b)|\s+[–—]\s+")
_PLAN = re.compile(r"(?i)(?:now\b|let me (?!know)|i need to|i have to)")
_DONE = re.compile(
    r"(?i)(?!now\b|then\b|.*(?:[:?]$|\b(?:let|i'll|will|needs?|should|next|if|when|until|before|almost|not)\b))"
    r".*\b(?:done|completed?|finished|fixed|implemented|resolved|committed|merged|deployed|tests pass)\b"
)
_STUCK = re.compile(r"(?i)\b(?:blocked|stuck|unable to|cannot|can't|could(?:n't| not)|waiting (?:for|on))\b")
_NEXT = re.compile(r"(?i)\b(?:next|remaining|still (?:to do|need|open)|left to do|to-?dos?|follow-?ups?)\b")
_LINK = re.compile(r"https?://[^\s<>()\[\]\"'`，。]{4,200}")


class Utterance(NamedTuple):
    """A text of a person or an agent, of bounded length."""

    position: int  # of its message
    by_user: bool
    text: str
    final: bool  # of an agent: an answer, not words before a call


def read_utterances(messages: Sequence[Message]) -> list[Utterance]:
    """Return what people typed and agents wrote, oldest first."""
    unscanned = _MAX_SCANNED
    utterances = []
    interrupted = False
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        by_user = message.role == "user"
        if message.role == "toolResult" or (by_user and not message.is_typed):
            continue
        if unscanned <= 0 and (position >= _OPENING or not by_user):
            continue
        text, final = message.text.strip(), False
        if by_user:
            interrupted = interrupted or text.startswith("[Request interrupted")
            text = _typed_text(text)
        elif text:
            was_cut = interrupted or message.stop_reason in ("aborted", "error", "max_tokens", "length")
            announces = any(map(_PLAN.match, list(sentences(text[-600:]))[-2:]))
            final = not (message.tool_calls or was_cut or announces)
            interrupted = False
        text = take_ends(text, _HEAD, _TAIL)
        unscanned -= len(text)
        if text:
            utterances.append(Utterance(position, by_user, text, final))
    return utterances[::-1]


def _typed_text(text: str) -> str:
    """Return the part of a user message that a person typed, without a program's insertions."""
    if text.startswith(_INSERTED_START):
        return ""
    typed = remove_insertions(text).strip()
    command = {} if typed else dict(_COMMAND.findall(text[:4_000]))
    if command.get("args"):
        return f"{command.get('name', '')} {command['args']}"
    is_slash_command = typed.startswith("/") and " " not in typed[:200]
    return "" if is_slash_command or typed.startswith(_INSERTED_START) else typed


def find_items(utterances: Sequence[Utterance]) -> Iterator[Item]:
    """Yield requests and rules of people, answers and reports of agents, and decisions of both."""
    unseen_answers = sum(utterance.final for utterance in utterances)
    request = ""
    for _, by_user, text, final in utterances:
        phrases = [s for s in islice(sentences(text), _MAX_SENTENCES) if len(s) <= _MAX_SENTENCE]
        yield from _find_decisions(phrases, by_user)
        if by_user:
            request = f"{quote(text, 90)} → "
            yield Item(GOAL, quote(text, 400))
            yield from (Item(ABOUT, quote(s, 220)) for s in phrases if _ABOUT.search(s))
            rules = (s for s in phrases if (_RULE.search(s) or _ORDER.match(s)) and not (_ABOUT.search(s) or _asks(s)))
            yield from (Item(CONSTRAINTS, quote(s, 240)) for s in islice(rules, 6))
            continue
        for box in filter(None, map(LIST_ITEM.match, text.splitlines())):
            if box[1]:
                yield Item(DONE if box[1] in "xX" else IN_PROGRESS, one_line(box[2], 160), 0.5)
        if final:
            unseen_answers -= 1
            if unseen_answers:  # the last one has a longer item of its own
                yield Item(DONE, request + one_line(text, 600 if unseen_answers < 5 else 240), 1.0)
            request = ""
        else:
            reports = (s for s in sentences(text[:600]) if _DONE.match(s) and len(s.split()) > 5)
            yield from (Item(DONE, one_line(s, 160), 2.0) for s in reports)


def _asks(text: str) -> bool:
    return text.rstrip("*_ ").endswith(("?", "？"))


def _find_decisions(phrases: Sequence[str], by_user: bool) -> Iterator[Item]:
    """Yield decisions and findings, each with its reason: in the sentence, or else the sentence before it."""
    before = ""
    for sentence in phrases:
        is_decision = _DECISION.search(sentence) is not None
        is_finding = is_decision or (_FINDING.search(sentence) and not _PLAN.match(sentence) and not by_user)
        previous, before = before, "" if is_finding else sentence
        if not is_finding or len(sentence.split()) < 5 or _asks(sentence):
            continue
        choice, *reason = _REASON.split(sentence, maxsplit=1)
        if not reason or min(len(choice.split()), len(reason[0].split())) < 3:
            is_reason = 30 <= len(previous) <= 240 and not _PLAN.match(previous)
            choice, reason = sentence, [previous] if is_reason else []
        parts = [one_line(choice.strip(" ,;:–—"), 180).rstrip("."), *(one_line(r.strip(" :"), 180) for r in reason)]
        yield Item(DECISIONS, ": ".join(parts).replace("**", ""), 0.0 if is_decision else 1.0)


def find_state(utterances: Sequence[Utterance], answered: bool) -> Iterator[Item]:
    """Yield where the conversation stands: links, open request, last words, obstacles, next steps."""
    links = [link.rstrip(".,;:") for utterance in utterances for link in _LINK.findall(utterance.text)]
    if links:
        newest = list(dict.fromkeys(reversed(links)))[:6]
        yield Item(FACTS, outline.LINKS + ", ".join(one_line(link, 160) for link in newest[::-1]), 2.0)
    newest_by = {utterance.by_user: utterance for utterance in utterances}
    if not answered and (request := newest_by.get(True)):
        yield Item(IN_PROGRESS, outline.WORKING + quote(request.text, 160))
    if words := newest_by.get(False):
        yield Item(FACTS, (outline.ANSWER if words.final else outline.STATEMENT) + quote(words.text, 900), 0.1)
    if utterances and utterances[-1].by_user:
        yield Item(NEXT_STEPS, outline.ANSWER_LATEST)
    elif words:
        yield from _find_next_steps(words, answered)


def _find_next_steps(last: Utterance, answered: bool) -> Iterator[Item]:
    """Yield what is in the way and what comes next, from an agent's last words."""
    closing = list(sentences(last.text))
    if last.final:
        yield from (Item(BLOCKED, quote(s, 220)) for s in closing if _STUCK.search(s) and len(s) < 400)
    steps = list(_announced_steps(last.text))
    yield from (Item(NEXT_STEPS, one_line(line, 200)) for line in steps)
    if not answered:
        yield Item(NEXT_STEPS, outline.GO_ON + quote(" ".join(closing[-2:]), 300))
    elif _asks(closing[-1]):
        yield Item(NEXT_STEPS, outline.QUESTION + quote(closing[-1], 220))
    elif not steps:
        yield Item(NEXT_STEPS, outline.AWAIT_REQUEST)


def _announced_steps(text: str) -> Iterator[str]:
    """Yield lines about what comes next, and the lists under them."""
    in_list = False
    for line in text.splitlines():
        item = LIST_ITEM.match(line)
        if item and in_list:
            yield item[2]
        elif line.strip():
            in_list = len(line) < 200 and _NEXT.search(line) is not None
            if in_list and not (line.startswith("#") or line.rstrip().endswith((":", "**"))):
                yield line
