"""PicoClaw's Save under a session that we follow: it drops lines, and the rest is still the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.app import open_store
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.formats.picoclaw.go_json import encode_go_json
from everlog.log.fold import fold
from everlog.model import Compaction, user
from everlog.session import Session, Store
from tests.examples import examples

KEY = "agent:main:direct:42"
STEM = "agent_main_direct_42"


class PicoClaw:
    """What PicoClaw does with its two files, after its source: simply, and in its order."""

    def __init__(self, root: Path) -> None:
        self.path = root / f"{STEM}.jsonl"
        self.meta_path = root / f"{STEM}.meta.json"
        self.count = 0
        if not self.path.exists():
            self._save_meta(key=KEY, summary="", skip=0, count=0, created_at=self._now(), updated_at=self._now())
            self._replace(self.path, b"")

    def _now(self) -> str:
        self.count += 1
        return f"2026-06-13T08:00:{self.count // 60:02d}.{self.count:09d}Z"

    @property
    def meta(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.meta_path.read_bytes())
        return found

    def _save_meta(self, **changes: object) -> None:
        old = self.meta if self.meta_path.exists() else {}
        self._replace(self.meta_path, encode_go_json({**old, **changes}, 2))

    def _replace(self, path: Path, data: bytes) -> None:
        path.with_suffix(".tmp").write_bytes(data)
        path.with_suffix(".tmp").rename(path)

    @property
    def lines(self) -> list[bytes]:
        return [line for line in self.path.read_bytes().split(b"\n") if line]

    @property
    def skip(self) -> int:
        skip = self.meta["skip"]
        assert isinstance(skip, int)
        return skip

    def visible(self) -> list[str]:
        """The texts that it sends a model."""
        return [json.loads(line)["content"] for line in self.lines[self.skip :]]

    def append(self, text: str, *, timed: bool = True) -> None:
        value = {"role": "user", "content": text} | ({"created_at": self._now()} if timed else {})
        with self.path.open("ab") as file:
            file.write(encode_go_json(value) + b"\n")
        self._save_meta(count=len(self.lines), updated_at=self._now())

    def summarise(self, text: str) -> None:
        self._save_meta(summary=text, updated_at=self._now())

    def truncate(self, keep: int) -> None:
        shown = len(self.lines) - self.skip
        if keep <= 0:
            self._save_meta(skip=len(self.lines), count=len(self.lines))
        elif keep < shown:
            self._save_meta(skip=len(self.lines) - keep, count=len(self.lines))

    def save(self, *, crash: bool = False) -> None:
        if self.skip:
            kept = self.lines[self.skip :]
            self._save_meta(skip=0, count=len(kept), updated_at=self._now())
            if not crash:
                self._replace(self.path, b"".join(line + b"\n" for line in kept))

    def clear(self) -> None:
        self._save_meta(skip=0, count=0)
        self._replace(self.path, b"")


class Both:
    """PicoClaw and we, in one directory."""

    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "theirs").mkdir()
        self.program = PicoClaw(top / "theirs")
        self.homes = 0
        self.store = self.opened()

    def opened(self) -> Store:
        self.homes += 1
        return open_store(self.top / "theirs", dialect="picoclaw", home=self.top / f"home-{self.homes}")

    @property
    def session(self) -> Session:
        return self.store.session(STEM)

    def compact(self, keep: int) -> None:
        """Keep the last messages of those that are in the context; check what PicoClaw keeps."""
        in_context = self.session.live().messages
        kept = in_context[-keep:] if keep else ()
        first = kept[0].seq if kept else self.session.metadata.through.seq + 99
        self.session.append(Compaction(first_kept_seq=first, summary=f"S{self.program.count}"))
        self.program.count += 1
        assert self.program.visible() == [message.text for message in kept]

    def check(self) -> None:
        with self.opened() as anew:
            assert shown(self.session) == shown(anew.session(STEM))


def shown(session: Session) -> tuple[str | None, list[str], list[str]]:
    """The summary, all messages, and those in the context."""
    view = fold(session.records())
    summary = view.compaction
    first = 0 if summary is None else summary.first_kept_seq
    kept = [message.text for message in view.messages if message.seq >= first]
    return None if summary is None else summary.summary, [message.text for message in view.messages], kept


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


def test_messages_that_are_still_there_keep_their_seq_and_id(both: Both) -> None:
    for number in range(6):
        both.program.append(f"{number}")
    both.session.append(user("ours", id="01JZZZZZZZZZZZZZZZZZZZZZZZ"))
    before = {message.text: (message.seq, message.id) for message in both.session.messages()}
    both.program.summarise("They counted.")
    both.program.truncate(3)
    both.program.save()
    after = {message.text: (message.seq, message.id) for message in both.session.messages()}
    assert list(after) == ["4", "5", "ours"]
    assert after == {text: before[text] for text in after}
    both.check()


def test_a_compaction_after_a_save_keeps_what_it_names(both: Both) -> None:
    for number in range(8):
        both.program.append(f"{number}")
    assert len(both.session.messages()) == 8
    both.program.summarise("S")
    both.program.truncate(5)
    both.program.save()
    both.program.append("8")
    both.compact(2)
    assert both.program.visible() == ["7", "8"]
    both.check()


def test_a_summary_is_wrapped_before_and_after_a_reclaim(both: Both) -> None:
    for number in range(4):
        both.program.append(f"{number}")
    both.program.summarise("They counted & left.")
    both.program.truncate(2)
    before = both.session.context().messages[0]
    both.check()
    both.session.reclaim()
    after = both.session.context().messages
    with both.opened() as anew:
        assert [message.text for message in anew.session(STEM).context().messages] == [one.text for one in after]
    assert [message.text for message in after[1:]] == ["2", "3"]
    assert before.text == after[0].text and "They counted & left." in before.text
    assert before.text.startswith("The conversation history before this point was compacted")


def test_a_summary_of_ours_stays_as_it_was_when_lines_are_dropped(both: Both) -> None:
    for number in range(4):
        both.program.append(f"{number}")
    first = both.session.messages()[2].seq
    both.session.append(Compaction(first_kept_seq=first, summary="S", strategy="prose", tokens_before=7))
    both.program.save()
    assert shown(both.session) == ("S", ["2", "3"], ["2", "3"])
    standing = both.session.live().summary
    assert standing is not None and (standing.strategy, standing.tokens_before) == ("prose", 7)
    assert both.session.context().stale == ()


def test_a_history_in_another_order_is_followed_anew(both: Both) -> None:
    for number in range(3):
        both.program.append(f"{number}")
    assert len(both.session.messages()) == 3
    lines = both.program.lines
    both.program._replace(both.program.path, b"".join(line + b"\n" for line in reversed(lines)))
    assert [message.text for message in both.session.messages()] == ["2", "1", "0"]
    both.session.append(user("ours"))
    both.program.truncate(2)
    both.check()
    both.program.save()
    both.check()
    assert [message.text for message in both.session.messages()] == ["0", "ours"]


def test_a_dropped_line_that_comes_back_is_shown_again(both: Both) -> None:
    for number in range(3):
        both.program.append(f"{number}")
    data = both.program.path.read_bytes()
    ids = [message.id for message in both.session.messages()]
    both.program.truncate(1)
    both.program.save()
    assert [message.text for message in both.session.messages()] == ["2"]
    both.program._replace(both.program.path, data)
    assert [message.id for message in both.session.messages()] == ids
    both.check()


steps = st.sampled_from(
    ["append", "append", "append", "twin", "summarise", "truncate", "save", "crash", "clear", "ours", "ours", "compact"]
)


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.tuples(steps, st.integers(0, 4), st.booleans()), max_size=14))
@example(
    [("append", 0, True)] * 4 + [("truncate", 2, True), ("save", 0, True), ("truncate", 1, True), ("save", 0, True)]
)
@example([("append", 0, True)] * 3 + [("compact", 2, True), ("save", 0, True), ("ours", 0, True), ("compact", 1, True)])
@example(
    [("twin", 0, True)] * 4 + [("truncate", 2, False), ("save", 0, False), ("twin", 0, True), ("compact", 2, True)]
)
@example([("append", 0, False), ("append", 0, True), ("truncate", 1, True), ("compact", 0, False), ("append", 0, True)])
@example([("twin", 0, True), ("clear", 0, True), ("twin", 0, True), ("append", 0, True)])
def test_any_order_of_their_writes_and_ours_shows_what_the_files_say(given: list[tuple[str, int, bool]]) -> None:
    with TemporaryDirectory() as top:
        both = Both(Path(top))
        program = both.program
        actions: dict[str, Callable[[int], object]] = {
            "append": lambda n: program.append(f"theirs {program.count}"),
            "twin": lambda n: program.append("twin", timed=False),
            "summarise": lambda n: program.summarise(f"S{program.count}"),
            "truncate": program.truncate,
            "save": lambda n: program.save(),
            "crash": lambda n: program.save(crash=True),
            "clear": lambda n: program.clear(),
            "ours": lambda n: both.session.append(user(f"ours {program.count} {n}")),
            "compact": both.compact,
        }
        for step, number, looks in given:
            actions[step](number)
            program.count += 1
            if looks:
                both.check()
        both.check()
        both.store.close()


def test_the_parts_of_a_rewritten_file_are_read_once(both: Both) -> None:
    assert picoclaw.IS_REWRITTEN
    both.program.append("a")
    both.program.append("b")
    both.program.truncate(1)
    assert shown(both.session) == (None, ["b"], ["b"])
    both.program.save()
    assert both.session.metadata.message_count == 1
