"""How often recall finds the right session: LoCoMo, conversations in sessions, and questions.

    python -m benchmarks.recall FILE

Each dialogue is a store of its own; each of its turns is a message, with the caption of a picture
as part of it. A question with evidence is asked as a message, and the sessions of the dialogue are
ranked. Right is any session in which evidence is: hit@k, whether one of them is among the first k;
MRR, one over the place of the first of them. A session that is not found has no place. Questions
without evidence are left out, all others count, those of category 5 (with a false premise) too;
what the others alone give is said before the last line.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.report import middle
from everlog.app import open_store
from everlog.ids import timestamp
from everlog.model import assistant, user
from everlog.ports import Query
from everlog.session import Session
from everlog.settings import SessionSettings, Settings

Dialogue = dict[str, Any]
Recall = Callable[[str], list[int]]  # a question, and the numbers of the sessions in order

_EVIDENCE = re.compile(r"D(\d+):\d+")
_PREMISE_IS_FALSE = 5


class Answer(NamedTuple):
    """What came of a question."""

    place: int | None  # of the first right session, from 1
    seconds: float
    category: int


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
    return 0


def _scores(answers: list[Answer]) -> str:
    places = [answer.place or sys.maxsize for answer in answers]
    first, five = (sum(place <= most for place in places) / len(places) for most in (1, 5))
    reciprocal = sum(1 / place for place in places) / len(places)
    return f"hit@1 {first:.3f} hit@5 {five:.3f} MRR {reciprocal:.3f}"


def _answers(dialogue: Dialogue) -> Iterator[Answer]:
    ranked = _index(dialogue)
    for question in dialogue["qa"]:
        right = {int(number) for number in _EVIDENCE.findall(" ".join(question["evidence"]))}
        if not right:
            continue
        start = time.perf_counter()
        found = ranked(question["question"])
        seconds = time.perf_counter() - start
        place = next((at for at, number in enumerate(found, 1) if number in right), None)
        yield Answer(place, seconds, question["category"])


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


def _index(dialogue: Dialogue) -> Recall:
    """A dialogue as a store that can be asked; all that is known of the store is in here."""
    folder = tempfile.TemporaryDirectory()
    settings = Settings(session=SessionSettings(durability="os"))
    store = open_store(folder.name, create=True, settings=settings)
    sessions: dict[int, Session] = {}
    names: dict[str, int] = {}
    now = 0
    for turn in _turns(dialogue):
        if turn.session not in sessions:
            sessions[turn.session] = made = Session(store, store.port.create(at=turn.time).id)
            names[made.id] = turn.session
        say = user if turn.role == "user" else assistant
        sessions[turn.session].append(say(turn.text, timestamp=timestamp(turn.time / 1000)))
        now = max(now, turn.time)
    store.port.catch_up()

    def ranked(message: str, _folder: object = folder) -> list[int]:
        found = store.port.recall(Query(text=message, limit=len(names)), now)
        return [names[one.session] for one in found.results]

    return ranked


if __name__ == "__main__":
    sys.exit(main())
