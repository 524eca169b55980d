"""The picker's parts: how much is read for what is seen, and which answer counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.utils import get_cwidth

from benchmarks.listing import populate
from everlog.app import open_store
from everlog.cli.picker import pick_async
from everlog.cli.picker.newest_task import NewestTask
from everlog.cli.picker.preview import MAX_MESSAGES
from everlog.cli.picker.session_filter import MAX_PAGE_SIZE, PAGE_SIZE, READ_AHEAD, to_query
from everlog.cli.picker.session_table import cut, fill, wrap
from everlog.errors import EverlogError, NotFoundError
from everlog.model import Entry, user
from everlog.ports import Filter, Order, Page, Progress, Query, Results
from everlog.session import Store
from everlog.settings import FurtherStoreSettings, Settings
from tests.foreign.foreign_directories import cersei_file, crabtalk_file, made

SECONDS = 60.0
EVERY = Filter()


class Counted:
    """A real store, and what is asked of it."""

    def __init__(self, store: Store) -> None:
        self._port = store.port
        self.pages: list[int] = []  # sessions of each page that was read
        self.records = 0  # that tails were read for
        self.searches: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def list(
        self, which: Filter = EVERY, *, limit: int = 50, cursor: str | None = None, order: Order = "active"
    ) -> Page:
        page = self._port.list(which, limit=limit, cursor=cursor, order=order)
        self.pages.append(len(page))
        return page

    def tail(self, session: str) -> Iterator[Entry]:
        for entry in self._port.tail(session):
            self.records += 1
            yield entry

    def search(self, asked: Query, *, progress: Progress | None = None) -> Results:
        self.searches.append(asked.text)
        return self._port.search(asked, progress=progress)


class Paper:
    """What a terminal of 80 by 24 would show."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> None:
        self._stream.feed(text)

    def flush(self) -> None:
        """Everything is written already."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)


@contextmanager
def picking(store: Store) -> Iterator[tuple[PipeInput, Paper, Counted]]:
    """The picker's surroundings, with a keyboard and a screen."""
    counted = Counted(store)
    paper = Paper()
    output = Vt100_Output(paper, lambda: Size(rows=24, columns=80), term="xterm")  # type: ignore[arg-type]  # of a text stream, it uses these
    with create_pipe_input() as keys, create_app_session(input=keys, output=output):
        yield keys, paper, counted


async def until(met: Callable[[], bool], paper: Paper) -> None:
    async def poll() -> None:
        while not met():
            await asyncio.sleep(0.005)

    try:
        await asyncio.wait_for(poll(), SECONDS)
    except TimeoutError:
        raise AssertionError(paper.text) from None


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Ten thousand sessions, and a long one that is the newest."""
    root = tmp_path_factory.mktemp("crowd") / "root"
    populate(root, 10_000)
    with open_store(root, create=True) as store:
        busy = store.create(title="A long one")
        busy.append_many([user(f"message {number}") for number in range(500)])
        assert store.list(limit=1).total == 10_001
        yield store


@pytest.mark.slow
def test_the_first_paint_of_ten_thousand_sessions_reads_one_page_and_one_preview(crowd: Store) -> None:
    async def look() -> str | None:
        with picking(crowd) as (keys, paper, counted):
            picker = asyncio.create_task(pick_async(Store(counted)))
            await until(lambda: "message 499" in paper.text, paper)
            assert "1 of 10,001" in paper.text and "› A long one" in paper.text
            assert counted.pages == [PAGE_SIZE]
            assert counted.records <= MAX_MESSAGES + 1
            keys.send_text("\x1b[B" * 3 + "\r")
            return await picker

    assert asyncio.run(look()) == crowd.list(limit=4)[3].id


def test_pages_are_read_as_one_scrolls_and_all_for_who_goes_to_the_end(crowd: Store) -> None:
    async def look() -> None:
        with picking(crowd) as (keys, paper, counted):
            picker = asyncio.create_task(pick_async(Store(counted)))
            await until(lambda: "1 of 10,001" in paper.text, paper)
            keys.send_text("\x1b[B" * (PAGE_SIZE - READ_AHEAD))
            await until(lambda: f"{PAGE_SIZE - READ_AHEAD + 1} of" in paper.text, paper)
            await until(lambda: len(counted.pages) == 1, paper)
            keys.send_text("\x1b[B" * 2)
            await until(lambda: counted.pages == [PAGE_SIZE, PAGE_SIZE], paper)
            keys.send_text("\x1b[F")
            await until(lambda: "10,001 of 10,001" in paper.text, paper)
            last = list(crowd.walk())[-1]
            assert f"› {last.metadata.display_title} " in paper.text
            assert len(counted.pages) <= 2 + 10_000 / MAX_PAGE_SIZE + 1
            keys.send_text("\x03")
            assert await picker is None

    asyncio.run(look())


def test_what_was_said_is_searched_for_words_and_not_for_single_letters() -> None:
    async def look(store: Store) -> None:
        with picking(store) as (keys, paper, counted):
            picker = asyncio.create_task(pick_async(Store(counted)))
            await until(lambda: "1 of 2\n" in paper.text, paper)
            keys.send_text("z")
            await until(lambda: "no session matches" in paper.text, paper)
            assert counted.searches == []
            keys.send_text("\x7fmessage 42")
            await until(lambda: "› A long one" in paper.text and "1 of 1\n" in paper.text, paper)
            assert counted.searches[-1] == "message 42*"
            keys.send_text("\x03")
            assert await picker is None

    with open_store("memory:") as store:
        store.create(title="A long one").append(user("message 429"))
        store.create(title="Another").append(user("nothing of the kind"))
        asyncio.run(look(store))


def test_of_what_waits_only_the_newest_is_done_and_an_overtaken_answer_is_dropped() -> None:
    async def look() -> None:
        begun, may_end = threading.Event(), threading.Event()
        done: list[str] = []
        taken: list[str] = []

        def work(name: str) -> str:
            done.append(name)
            if name == "first":
                begun.set()
                assert may_end.wait(SECONDS)
            return name

        with ThreadPoolExecutor(1) as threads:
            newest = NewestTask(threads, on_error=lambda error: pytest.fail(str(error)))
            newest.submit(lambda: work("first"), taken.append)
            await asyncio.to_thread(begun.wait, SECONDS)
            for name in ("second", "third", "fourth"):
                newest.submit(lambda name=name: work(name), taken.append)  # type: ignore[misc]
            may_end.set()
            while newest.is_busy:
                await asyncio.sleep(0.005)
        assert done == ["first", "fourth"]
        assert taken == ["fourth"]

    asyncio.run(look())


def test_a_failure_is_told_and_the_next_question_is_answered() -> None:
    async def look() -> None:
        told: list[EverlogError] = []
        taken: list[int] = []

        def fail() -> int:
            raise NotFoundError("it is gone")

        with ThreadPoolExecutor(1) as threads:
            newest = NewestTask(threads, told.append)
            for work in (fail, lambda: 3):
                newest.submit(work, taken.append)
                while newest.is_busy:
                    await asyncio.sleep(0.005)
        assert [one.message for one in told] == ["it is gone"] and taken == [3]

    asyncio.run(look())


def test_the_last_word_of_a_filter_is_a_beginning_unless_it_is_quoted() -> None:
    assert to_query("flaky te") == "flaky te*"
    assert to_query('"flaky te"') == '"flaky te"'
    assert to_query("c++") == "c++"


def test_text_is_cut_filled_and_wrapped_by_columns_not_characters() -> None:
    assert cut("会議の記録", 10) == "会議の記録"
    assert cut("会議の記録", 9) == "会議の記…"
    assert cut("会議の記録", 8) == "会議の…"
    assert fill("会議の記録", 8) == "会議の… "
    assert (cut("abc", 0), cut("abc", 1), cut("abc", 2)) == ("", "…", "a…")
    assert wrap("会議の記録", 4) == ["会議", "の記", "録"]
    assert wrap("", 4) == [""]


def test_lines_of_the_preview_break_between_words_and_stay_indented() -> None:
    assert wrap("  a word, and another", 11) == ["  a word,", "  and", "  another"]
    assert wrap("one two", 3) == ["one", "two"]
    assert wrap("  unbreakable", 8) == ["  unbrea", "  kable"]


@settings(deadline=None)
@given(st.text("ab  \u0301会", max_size=60), st.integers(2, 12))
def test_no_line_of_the_preview_is_too_wide_and_nothing_but_spaces_goes(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(get_cwidth(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert get_cwidth(cut(text, width)) <= width


def test_what_a_session_of_another_program_cannot_hold_is_not_offered(tmp_path: Path) -> None:
    async def look(store: Store) -> None:
        with picking(store) as (keys, paper, _):
            picker = asyncio.create_task(pick_async(store))
            await until(lambda: "› ours" in paper.text and "^R rename · ^D delete" in paper.text, paper)
            keys.send_text("\x1b[B")
            await until(lambda: "› Crabs" in paper.text and "^R rename" not in paper.text, paper)
            keys.send_text("\x04")
            await until(lambda: "only read here and cannot be deleted" in paper.text, paper)
            keys.send_text("\x1b[B")
            await until(lambda: "› hello" in paper.text and "^D delete" not in paper.text, paper)
            keys.send_text("\x04")
            await until(lambda: "a session of cersei: open it" in paper.text, paper)
            keys.send_text("\x03")
            assert await picker is None

    crab = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file(title="Crabs").replace(b"-03-01", b"-03-02")})
    cersei = made(tmp_path / "cersei", {"s-1.jsonl": cersei_file("s-1")})
    stores = (FurtherStoreSettings(f"crabtalk:{crab}"), FurtherStoreSettings(f"cersei:{cersei}", mode="write"))
    with open_store(tmp_path / "root", create=True, settings=Settings(stores=stores)) as store:
        store.create(title="ours").append(user("hi"))
        asyncio.run(look(store))
        assert store.list().total == 3
