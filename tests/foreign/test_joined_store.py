"""Several stores as one: what is listed, what is found, and what one that is broken does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

import msgspec
import pytest

import everlog
from everlog.app import open_store
from everlog.errors import NotFoundError, SettingsError, StoreFailedError, UnconfirmedError, UnsupportedError
from everlog.identity.route import Router
from everlog.identity.scope import Inbound
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.joined_store import FurtherStore, JoinedStore
from everlog.ports import DirectoryBacked, Order, SessionAccess
from everlog.ports.capabilities import (
    CAPABILITIES,
    Copying,
    FileBacked,
    Measurable,
    Permitting,
    Purgeable,
    RawReadable,
    Reclaimable,
    Reporting,
    Routing,
    SharedBetweenMachines,
    Sweepable,
    Transferable,
    Watchable,
)
from everlog.session import Store
from everlog.settings import FurtherStoreSettings, Settings
from tests.foreign.foreign_directories import cersei_file, crabtalk_file, made, picoclaw_files
from tests.stores.postgres.open_stores import Stores, shared_server

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def numbered(hour: int) -> dict[str, bytes]:
    """Sessions that were made on five days, at an hour."""
    made = crabtalk_file().replace(b"T08", b"T%02d" % hour)
    return {f"crab_{hour}_{day}.jsonl": made.replace(b"2026-03-01", b"2026-03-0%d" % day) for day in range(1, 6)}


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Store]:
    """A root with three sessions, and two directories of five."""
    places = [made(tmp_path / f"at-{hour}", numbered(hour)) for hour in (8, 9)]
    with joined(tmp_path, *places) as store:
        for number in range(3):
            store.create(title=f"ours {number}").append(everlog.user("hi"))
        yield store


def joined(tmp_path: Path, *places: Path) -> Store:
    settings = Settings(stores=tuple(FurtherStoreSettings(f"auto:{one}", mode="write") for one in places))
    return open_store(tmp_path / "root", create=True, settings=settings)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("order", ["active", "created"])
def test_pages_have_every_session_once(stores: Store, order: str, limit: int) -> None:
    rows: list[everlog.SessionRow] = []
    cursor = None
    for _ in range(20):
        page = stores.port.list(limit=limit, cursor=cursor, order=cast(Order, order))
        rows += page
        cursor = page.next
        if cursor is None:
            break
    assert cursor is None
    assert len(rows) == len({row.id for row in rows}) == page.total == 13
    if order == "created":
        times = [row.metadata.created_at for row in rows]
        assert times == sorted(times, reverse=True)


def test_a_directory_that_is_not_there_does_not_hide_the_others(tmp_path: Path) -> None:
    place = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file()})
    with joined(tmp_path, tmp_path / "nowhere", place) as store:
        own = store.create(title="ours")
        assert {row.id for row in store.list()} == {own.id, "crab_user_1"}
        assert any("nowhere cannot be read" in one for one in store.port.reports)  # type: ignore[attr-defined]
        assert store.session("crab_user_1").messages()
        with pytest.raises(NotFoundError):
            store.session("crab_user_9")
        place.rename(tmp_path / "away")
        assert [row.id for row in store.list()] == [own.id]
        with pytest.raises(StoreFailedError):
            store.session("crab_user_9")
        made(tmp_path / "nowhere", {"crab_user_2.jsonl": crabtalk_file()})  # its program came
        assert {row.id for row in store.list()} == {own.id, "crab_user_2"}


def test_an_id_that_two_directories_have_is_that_of_the_first(tmp_path: Path) -> None:
    files = {"crab_user_1.jsonl": crabtalk_file()}
    first = made(tmp_path / "first", files)
    second = made(tmp_path / "second", {**files, "crab_user_2.jsonl": crabtalk_file()})
    with joined(tmp_path, first, second) as store:
        assert sorted(row.id for row in store.list()) == ["crab_user_1", "crab_user_2"]
        store.session("crab_user_1").append(everlog.user("here"))
    assert (second / "crab_user_1.jsonl").read_bytes() == crabtalk_file()


def test_another_conversation_under_the_id_of_one_in_an_earlier_directory_is_named(tmp_path: Path) -> None:
    first = made(tmp_path / "first", {"crab_user_1.jsonl": crabtalk_file()})
    other = crabtalk_file().replace(b"hello", b"zebra")
    second = made(tmp_path / "second", {"crab_user_1.jsonl": other, "crab_user_2.jsonl": other})
    with joined(tmp_path, first, second) as store:
        directory = store.port.capability(DirectoryBacked)
        assert directory is not None
        (file,) = directory.skipped_files()
        assert file.path == str(second / "crab_user_1.jsonl")
        assert file.reason.startswith(f"{first} has a session with this id")
        assert [result.session for result in store.search("zebra").results] == ["crab_user_2"]
        assert store.search("zebra").total == 1


def test_a_directory_that_is_not_there_is_named_with_the_skipped_files(tmp_path: Path) -> None:
    there = made(tmp_path / "there", {"crab_user_1.jsonl": crabtalk_file(), "notes.txt": b"x"})
    with joined(tmp_path, tmp_path / "nowhere", there) as store:
        directory = store.port.capability(DirectoryBacked)
        assert directory is not None
        assert [file.path for file in directory.skipped_files()] == [f"{tmp_path}/nowhere/", f"{there}/notes.txt"]


def test_a_foreign_session_may_have_an_id_like_ours(tmp_path: Path) -> None:
    place = made(tmp_path / "cersei", {f"{ULID}.jsonl": cersei_file(ULID)})
    with joined(tmp_path, place) as store:
        assert [row.id for row in store.list()] == [ULID]
        assert store.session(ULID).messages()


def test_a_joined_store_answers_for_every_capability(stores: Store) -> None:
    port = stores.port
    own = port.main  # type: ignore[attr-defined]
    answers = {kind: port.capability(kind) for kind in CAPABILITIES}
    assert answers.pop(Routing) is not None, "messages are routed in the native store"
    assert answers == {
        Reporting: port,
        Permitting: port,
        Copying: port,
        Reclaimable: port,
        Watchable: own,
        Sweepable: own,
        Purgeable: port,
        FileBacked: port,
        Measurable: own,
        RawReadable: own,
        Transferable: own,
        SharedBetweenMachines: None,
    }
    assert port.capability(ForeignStore) is None, "it is not one of them"
    with pytest.raises(UnsupportedError, match="nothing to reclaim"):
        port.capability(Reclaimable).reclaim(stores.list(title="ours")[0].id)  # type: ignore[union-attr]


def test_messages_are_routed_in_the_main_store_only(tmp_path: Path) -> None:
    place = made(tmp_path / "claw", picoclaw_files("agent:main:telegram:direct:7"))
    routed = Router().route(Inbound(channel="telegram", chat_type="direct", chat_id="7", sender_id="7"))
    with joined(tmp_path, place) as store:
        session = store.route_to_session(routed)
        assert session.messages() == [], "the history of another program's session is not taken"
        assert session.id in {row.id for row in store.port.main.list()}  # type: ignore[attr-defined]
        assert store.route_to_session(routed).id == session.id


def test_a_foreign_store_can_be_reclaimed_and_reports(tmp_path: Path) -> None:
    place = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file()})
    with open_store(f"crabtalk:{place}", home=tmp_path / "home") as store:
        has = {kind for kind in (*CAPABILITIES, ForeignStore) if store.port.capability(kind) is store.port}
    assert has == {Reporting, Reclaimable, Permitting, Purgeable, FileBacked, ForeignStore}


def test_a_copy_can_be_asked_for_what_it_does_not_have(stores: Store) -> None:
    assert copy.copy(stores.port) is not stores.port
    with pytest.raises(AttributeError):
        _ = stores.port._nothing  # type: ignore[attr-defined]


def test_nothing_of_ours_goes_into_the_directory_of_another_program(tmp_path: Path) -> None:
    place = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file()})
    for home in (place, place / "inside", tmp_path / "crab" / ".." / "crab"):
        with pytest.raises(SettingsError, match=r"inside the foreign directory|sessions of another program"):
            open_store(f"crabtalk:{place}", home=home)
    assert [one.name for one in place.iterdir()] == ["crab_user_1.jsonl"]


def test_a_search_has_every_session_once_and_counts_those_in_question(stores: Store) -> None:
    every = [one.session for one in stores.search("hi OR hello", limit=50).results]
    pages = [stores.search("hi OR hello", limit=4, offset=offset) for offset in range(0, 17, 4)]
    assert [one.session for page in pages for one in page.results] == every
    assert len(every) == len(set(every)) == 13
    assert {page.total for page in pages} == {13}
    for limit in (1, 50):  # of more sessions than are shown, and of all of them
        found = stores.search("hi OR hello", limit=limit, title="ours")
        assert (len(found.results), found.total) == (min(limit, 3), 3)


def crabtalk_session(title: str, *texts: str) -> bytes:
    """A session of CrabTalk in which a user says these things."""
    head = crabtalk_file(title=title).split(b"\n")[0]
    return b"\n".join([head, *(msgspec.json.encode({"role": "user", "content": text}) for text in texts), b""])


@pytest.fixture
def libraries(tmp_path: Path) -> Iterator[Store]:
    """A native store and two foreign ones: "otter" is rare in ours, and in every session of the first of them."""
    otters = {f"crab_a_{n}.jsonl": crabtalk_session(f"first {n}", f"the otter swims, day {n}") for n in range(1, 9)}
    others = {f"crab_b_{n}.jsonl": crabtalk_session(f"second {n}", f"the badger digs, day {n}") for n in range(1, 9)}
    others["crab_b_9.jsonl"] = crabtalk_session("met", "otter and heron meet at the river")
    with joined(tmp_path, made(tmp_path / "one", otters), made(tmp_path / "two", others)) as store:
        for number in range(8):
            store.create(title=f"ours {number}").append(everlog.user(f"the falcon flies, day {number}"))
        store.create(title="rare").append(everlog.user("a heron and an otter, seen by the river"))
        yield store


def test_any_of_the_words_will_do_only_if_no_store_has_them_all(libraries: Store) -> None:
    both = libraries.search("otter heron")
    assert {result.title for result in both.results} == {"rare", "met"}
    assert both.total == 2, "the first directory has otters, but no heron"
    either = libraries.search("otter gannet")
    assert either.total == 10, "nobody has both, so all with one of them"


def test_one_ranking_over_all_stores(libraries: Store, tmp_path: Path) -> None:
    for query in ("otter", "heron", "river", "otter heron", "badger OR falcon OR heron", "heron gannet"):
        results = libraries.search(query, limit=50).results
        with everlog.open_store("memory:") as one:  # the same texts in one store
            for row in libraries.list(limit=100):
                copied = one.create(title=row.metadata.title)
                for message in libraries.session(row.id).messages():
                    copied.append(everlog.user(message.text))
            expected = {result.title: result.score for result in one.search(query, limit=50).results}
        found = {result.title: result.score for result in results}
        assert found == pytest.approx(expected, abs=0.1), query
        assert max(found.values()) == 1, "the best of all, and not of each"
        assert [result.score for result in results] == sorted(found.values(), reverse=True)


def test_the_words_of_a_store_that_fails_are_not_missed_in_the_others(libraries: Store, tmp_path: Path) -> None:
    (tmp_path / "one").rename(tmp_path / "gone")
    assert {result.title for result in libraries.search("otter heron").results} == {"rare", "met"}


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_session_of_another_program_says_what_may_be_done_with_it(
    tmp_path: Path, mode: Literal["read", "write"]
) -> None:
    place = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file()})
    settings = Settings(stores=(FurtherStoreSettings(f"crabtalk:{place}", mode=mode),))
    with open_store(tmp_path / "root", create=True, settings=settings) as store:
        assert store.create().access == SessionAccess(), "everything, in a session of ours"
        access = store.session("crab_user_1").access
        assert (access.mode, access.program) == ("ask" if mode == "write" else "read", "crabtalk")
        assert access.file == str(place / "crab_user_1.jsonl") and access.can_copy
        assert access.allows("rename") is (mode == "write")
        assert not access.allows("rewind") and not access.allows("fork")
        with pytest.raises(UnconfirmedError if mode == "write" else UnsupportedError, match="crabtalk"):
            access.check("append")
        if mode == "write":
            access.check("append", continue_here=True)
            with pytest.raises(UnsupportedError, match="cannot be forked"):
                access.check("fork", continue_here=True)


def test_a_copy_in_the_store_follows_its_original_until_it_is_continued(tmp_path: Path) -> None:
    file = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file(title="theirs")}) / "crab_user_1.jsonl"
    settings = Settings(stores=(FurtherStoreSettings(f"crabtalk:{file.parent}"),))
    with open_store(tmp_path / "root", create=True, settings=settings) as store:
        copying = store.port.capability(Copying)
        assert copying is not None
        copy = store.session(copying.copy_session("crab_user_1"))
        assert [message.text for message in copy.messages()] == ["hello", "hi there"]
        assert copy.access == SessionAccess() and copy.metadata.title == "theirs"
        with file.open("ab") as opened:
            opened.write(b'{"role":"user","content":"and now?"}\n')
        assert copying.copy_session("crab_user_1") == copy.id
        assert [message.text for message in copy.messages()] == ["hello", "hi there", "and now?"]
        copy.update(aliases=["crab_user_1"])
        assert store.session("crab_user_1").id == "crab_user_1", "the id of one goes before the name of another"
        assert store.session(copy.id) == copy
        copy.append(everlog.user("ours"))
        with file.open("ab") as opened:
            opened.write(b'{"role":"assistant","content":"theirs"}\n')
        assert copying.copy_session("crab_user_1") != copy.id, "two conversations never become one"
        assert file.read_bytes().startswith(crabtalk_file(title="theirs"))
        with pytest.raises(UnsupportedError, match="no session of another program"):
            copying.copy_session(copy.id)


def test_a_database_is_searched_together_with_a_directory(tmp_path: Path) -> None:
    files = {
        f"crab_a_{n}.jsonl": crabtalk_session(f"theirs {n}", f"the otter swims in the river, day {n}")
        for n in range(1, 9)
    }
    files["crab_a_9.jsonl"] = crabtalk_session("their heron", "a heron stands in the river")
    place = made(tmp_path / "crab", files)
    with Stores(shared_server()) as databases, open_store(f"crabtalk:{place}", home=tmp_path / "home") as theirs:
        store = Store(JoinedStore(databases.new(), [FurtherStore(theirs.port, place, is_writable=False)]))
        for number in range(8):
            store.create(title=f"ours {number}").append(everlog.user(f"the falcon flies, day {number}"))
        store.create(title="our heron").append(everlog.user("a heron and an otter by the river"))
        assert [result.title for result in store.search("heron otter").results] == ["our heron"]
        found = {result.title: result.score for result in store.search("river heron OR otter").results}
        assert len(found) == 10
        titles = sorted(found, key=found.__getitem__)
        assert {"our heron", "their heron"} == set(titles[-2:]), "rare words count most, wherever they are"
        assert store.search("gannet").total == 0
