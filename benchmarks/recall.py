"""How often recall finds the right session: LoCoMo, conversations in sessions, and questions.

    python -m benchmarks.recall FILE

Each dialogue is a store of its own; each of its turns is a message, with the caption of a picture
as part of it. A question with evidence is asked as a message, and the sessions of the dialogue are
ranked. Right is any session in which evidence is: hit@k, whether one of them is among the first k;
MRR, one over the place of the first of them. A session that is not found has no place. Questions
without evidence are left out, all others count, those of category 5 (with a false premise) too;
what the others alone give is said before the last line.

What a turn gets is measured too: whether the messages with the evidence are in the block that is
injected, of 2,000 tokens at most: one of them, all of them, and their share over all questions.
"""

from __future__ import annotations

import operator
import re
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.report import middle
from everlog.app import open_store
from everlog.context.tokens import estimate_text
from everlog.ids import timestamp
from everlog.memory.facts import sanitize_line
from everlog.memory.recall import find_passages, format_recall
from everlog.model import assistant, user
from everlog.ports import Query
from everlog.ports.memory import RecallQuery
from everlog.session import Session, Store
from everlog.settings import MemorySettings, SessionSettings, Settings

Dialogue = dict[str, Any]

_EVIDENCE = re.compile(r"D(\d+):(\d+)")
_PREMISE_IS_FALSE = 5
BLOCK_TOKENS = 2_000


class Answer(NamedTuple):
    """What came of a question."""

    place: int | None  # of the first right session, from 1
    seconds: float
    category: int
    evidence: int  # messages with the evidence
    injected: int  # those of them that are in the block
    tokens: int  # of the block


def main() -> int:
    """Measure a file."""
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.recall FILE", file=sys.stderr)
        return 2
    dialogues: list[Dialogue] = msgspec.json.decode(Path(sys.argv[1]).read_bytes())
    answers = [answer for dialogue in dialogues for answer in _answers(dialogue)]
    if not answers:
        print("no questions with evidence", file=sys.stderr)
        return 1
    print(f"{len(dialogues)} dialogues, {len(answers)} questions")
    times = sorted(answer.seconds * 1000 for answer in answers)
    print(f"latency p50 {middle(times):.2f} ms p95 {times[len(times) * 95 // 100]:.2f} ms")
    true = [answer for answer in answers if answer.category != _PREMISE_IS_FALSE]
    if true:
        print(f"without category {_PREMISE_IS_FALSE} {_scores(true)}")
    print(_scores(answers))
    print(_injected(answers))
    return 0


def _injected(answers: list[Answer]) -> str:
    known = [answer for answer in answers if answer.evidence]
    some, everything = (
        sum(test(answer.injected, answer.evidence) for answer in known) / len(known)
        for test in (lambda injected, _: injected > 0, operator.eq)
    )
    share = sum(answer.injected for answer in known) / sum(answer.evidence for answer in known)
    tokens = sum(answer.tokens for answer in known) / len(known)
    return f"in the block: any {some:.3f} all {everything:.3f} share {share:.3f}, {tokens:.0f} tokens in the mean"


def _scores(answers: list[Answer]) -> str:
    places = [answer.place or sys.maxsize for answer in answers]
    first, five = (sum(place <= most for place in places) / len(places) for most in (1, 5))
    reciprocal = sum(1 / place for place in places) / len(places)
    return f"hit@1 {first:.3f} hit@5 {five:.3f} MRR {reciprocal:.3f}"


def _answers(dialogue: Dialogue) -> Iterator[Answer]:
    indexed = _index(dialogue)
    for question in dialogue["qa"]:
        right = {(int(session), int(seq)) for session, seq in _EVIDENCE.findall(" ".join(question["evidence"]))}
        if not right:
            continue
        start = time.perf_counter()
        found = indexed.rank(question["question"])
        seconds = time.perf_counter() - start
        place = next((at for at, number in enumerate(found, 1) if number in {session for session, _ in right}), None)
        block = indexed.inject(question["question"])
        texts = [indexed.texts[turn] for turn in right if turn in indexed.texts]
        injected = sum(sanitize_line(text)[:200] in block for text in texts)
        yield Answer(place, seconds, question["category"], len(texts), injected, estimate_text(block))


class Turn(NamedTuple):
    """A message of a dialogue."""

    session: int
    seq: int
    role: str
    time: int
    text: str


def _turns(dialogue: Dialogue) -> Iterator[Turn]:
    told = dialogue["conversation"]
    numbers = sorted(int(name[8:]) for name in told if re.fullmatch(r"session_\d+", name))
    for session in numbers:
        when = datetime.strptime(told[f"session_{session}_date_time"], "%I:%M %p on %d %B, %Y")
        start = int(when.replace(tzinfo=UTC).timestamp() * 1000)
        for seq, turn in enumerate(told[f"session_{session}"], 1):
            role = "user" if turn["speaker"] == told["speaker_a"] else "assistant"
            seen = f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            text = f"{turn['speaker']}: {turn['text']}{seen}"
            yield Turn(session, seq, role, start + seq * 1000, text)


class Indexed:
    """A dialogue as a store that can be asked; all that is known of the store is in here."""

    def __init__(self, store: Store, names: dict[str, int], now: int) -> None:
        self.texts: dict[tuple[int, int], str] = {}
        self._store = store
        self._names = names
        self._now = now

    def rank(self, message: str) -> list[int]:
        """The numbers of the sessions in order."""
        found = self._store.port.recall(Query(text=message, limit=len(self._names)), self._now)
        return [self._names[one.session] for one in found.results]

    def inject(self, message: str) -> str:
        """What a turn with this message gets."""
        query = RecallQuery(text=message, sender="user", limit=MemorySettings().recall, tokens=BLOCK_TOKENS)
        passages = find_passages(self._store.port, query, None, self._now / 1000)
        return format_recall((), passages, query, estimate_text)


def _index(dialogue: Dialogue) -> Indexed:
    folder = tempfile.TemporaryDirectory()
    settings = Settings(session=SessionSettings(durability="os"))
    store = open_store(folder.name, create=True, settings=settings)
    sessions: dict[int, Session] = {}
    turns = list(_turns(dialogue))
    for turn in turns:
        if turn.session not in sessions:
            sessions[turn.session] = Session(store, store.port.create(at=turn.time).id)
        say = user if turn.role == "user" else assistant
        sessions[turn.session].append(say(turn.text, timestamp=timestamp(turn.time / 1000)))
    store.port.catch_up()
    names = {session.id: number for number, session in sessions.items()}
    indexed = Indexed(store, names, max(turn.time for turn in turns))
    indexed.texts = {(turn.session, turn.seq): turn.text for turn in turns}
    weakref.finalize(indexed, folder.cleanup)
    return indexed


if __name__ == "__main__":
    sys.exit(main())
