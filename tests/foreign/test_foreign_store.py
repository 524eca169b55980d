"""What only a store on foreign files does: finding them, making them, several at once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.app import open_runtime, open_store
from everlog.errors import (
    ConflictError,
    InvalidIdError,
    NotFoundError,
    SettingsError,
    UnconfirmedError,
    UnsupportedError,
)
from everlog.interop.foreign.foreign_lease import ForeignLease
from everlog.interop.formats.claude.projects import project_directory
from everlog.ports import Query
from everlog.settings import FurtherStoreSettings, Settings
from tests.cli.runner import run_process
from tests.foreign.foreign_directories import CLAUDE, PI, cersei_file, crabtalk_file, made, picoclaw_files
from tests.formats.round_trips import golden

GOLDEN = Path(__file__).parents[1] / "formats" / "golden"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def everything(root: Path) -> Path:
    """One directory with files of five programs, and some of nobody."""
    made(root, golden("claude", CLAUDE).files)
    made(root, {"s-1.jsonl": cersei_file("s-1"), "crab_user_1.jsonl": crabtalk_file()})
    made(root, picoclaw_files("agent:main:main"))
    made(root, golden("pi", PI).files)
    made(root, {"notes.jsonl": b'{"a":1}\n', "empty.jsonl": b"", "README.md": b"# hi\n"})
    return root


# --- finding


def test_each_file_is_known_by_its_content(tmp_path: Path, home: Path) -> None:
    root = everything(tmp_path / "all")
    for location in (str(root), f"auto:{root}"):
        with open_store(location, home=home) as store:
            found = {row.id: row.metadata.source for row in store.list()}
            assert found == {
                CLAUDE: "claude",
                "s-1": "cersei",
                "crab_user_1": "crabtalk",
                "agent_main_main": "picoclaw",
                PI: "pi",
            }
            for session in found:
                assert store.session(session).messages()


def test_a_named_dialect_sees_its_own_files_only(tmp_path: Path, home: Path) -> None:
    root = everything(tmp_path / "all")
    with open_store(f"cersei:{root}", home=home) as store:
        assert {row.id for row in store.list()} >= {"s-1"}
        assert all(row.metadata.source == "cersei" for row in store.list())


def test_what_one_dialect_knew_of_a_directory_does_not_bind_another(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "c", {"crab_user_1.jsonl": crabtalk_file()})
    for dialect, found in (("claude", []), ("auto", ["crab_user_1"]), ("pi", []), ("claude", [])):
        with open_store(f"{dialect}:{root}", home=home) as store:
            assert [row.id for row in store.list()] == found
            for session in found:
                assert store.session(session).messages()


def test_a_root_of_ours_is_never_taken_for_a_foreign_one(tmp_path: Path, home: Path) -> None:
    with open_store(tmp_path / "ours", create=True) as store:
        store.create().append(everlog.user("hi"))
    made(tmp_path / "ours", {"crab_user_1.jsonl": crabtalk_file()})
    with open_store(tmp_path / "ours", home=home) as store:
        assert [len(row.id) for row in store.list()] == [26]
    with open_store(tmp_path / "new", home=home, create=True) as store:
        store.create()
    assert (tmp_path / "new" / "sessions").is_dir()
    assert not home.exists()


def test_a_session_is_listed_when_it_comes_and_gone_when_it_goes(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "c", {"crab_user_1.jsonl": crabtalk_file()})
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert store.list().total == 1
        made(root, {"crab_user_2.jsonl": crabtalk_file(title="Second")})
        assert {row.metadata.display_title for row in store.list()} == {"New Session", "Second"}
        (root / "crab_user_1.jsonl").unlink()
        assert [row.id for row in store.list()] == ["crab_user_2"]
        with pytest.raises(NotFoundError):
            store.session("crab_user_1").messages()


def test_a_session_that_its_program_renames_stays_the_same(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "c", {"crab_user_1.jsonl": crabtalk_file()})
    with open_store(f"crabtalk:{root}", home=home) as store:
        session = store.session("crab_user_1")
        session.append(everlog.user("one"))
        session.end_turn(duration_ms=10)
        (root / "crab_user_1.jsonl").rename(root / "crab_user_1_some-title.jsonl")
        session.append(everlog.user("two"))
        assert [m.text for m in session.messages()][-2:] == ["one", "two"]
        assert session.metadata.metrics.total_turns == 1
        assert os.listdir(root) == ["crab_user_1_some-title.jsonl"]


def test_files_of_one_name_in_two_projects_stay_apart(tmp_path: Path, home: Path) -> None:
    files = golden("claude", CLAUDE).files
    name = f"{CLAUDE}.jsonl"
    root = made(tmp_path / "projects", {f"-a-b/{name}": files[name], f"-c/{name}": files[name]})
    with open_store(f"claude:{root}", home=home) as store:
        assert {row.id for row in store.list()} == {CLAUDE, f"-c:{CLAUDE}"}
        store.session(f"-c:{CLAUDE}").append(everlog.user("here"))
        assert (root / "-a-b" / name).read_bytes() == files[name]
        assert len((root / "-c" / name).read_bytes()) > len(files[name])
        assert store.list().total == 2  # now it is the newer one, and each still has its id
        assert store.session(f"-c:{CLAUDE}").messages()[-1].text == "here"
        assert store.session(CLAUDE).messages()[-1].text != "here"


def test_no_link_is_followed(tmp_path: Path, home: Path) -> None:
    secret = made(tmp_path / "secret", {"crab_user_1.jsonl": crabtalk_file()})
    root = tmp_path / "root"
    root.mkdir()
    (root / "crab_user_1.jsonl").symlink_to(secret / "crab_user_1.jsonl")
    (root / "folder").symlink_to(secret)
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert store.list().total == 0
        with pytest.raises((NotFoundError, InvalidIdError)):
            store.session("crab_user_1")


def test_an_agent_is_found_under_the_session_that_asked_it(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "p"
    shutil.copytree(GOLDEN / "claude", root)
    with open_store(f"claude:{root}", home=home) as store:
        assert [row.id for row in store.list()] == [CLAUDE]
        agents = store.session(CLAUDE).metadata.extra["agents"]
        assert agents and all(one.startswith(f"{CLAUDE}:agent-") for one in agents)
        session = store.session(agents[0])
        assert session.messages()
        session.append(everlog.user("go on"))
        assert session.messages()[-1].text == "go on"
        with pytest.raises(NotFoundError):
            store.session(f"{CLAUDE}:agent-nobody")


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path, home: Path) -> None:
    with pytest.raises(NotFoundError):
        open_store(f"claude:{tmp_path / 'nowhere'}", home=home)
    with pytest.raises(SettingsError):
        open_store(f"klingon:{tmp_path}", home=home)


def test_what_was_said_in_foreign_files_is_found(tmp_path: Path) -> None:
    root = everything(tmp_path / "all")
    settings = Settings(stores=(FurtherStoreSettings(f"auto:{root}", mode="write"),))
    with open_store(tmp_path / "root", create=True, settings=settings) as store:
        own = store.create(title="Ours")
        own.append(everlog.user("hello from us"))
        found = {one.session: one for one in store.search("hello").results}
        assert {own.id, "crab_user_1", "s-1", "agent_main_main"} <= set(found)
        assert found["s-1"].hits[0].snippet == "«hello»"
        with (root / "crab_user_1.jsonl").open("ab") as opened:
            opened.write(b'{"role":"user","content":"a kumquat, please"}\n')
        (one,) = store.search("kumquats").results
        assert (one.session, one.title) == ("crab_user_1", "New Session")
        assert [one.session for one in store.search("hello", source="cersei").results] == ["s-1"]
        store.port.catch_up()
        query = Query(text="what about the kumquat?", excluded_sessions=frozenset({own.id}))
        assert store.port.recall(query, 1_800_000_000_000).results[0].session == "crab_user_1"
        store.session("crab_user_1").delete()
        assert store.search("kumquat").results == ()


def test_a_filter_finds_a_foreign_session_behind_better_ones(tmp_path: Path) -> None:
    files = {f"crab_{n}.jsonl": crabtalk_file(title="hello hello") for n in range(3)}
    root = made(tmp_path / "all", {**files, "other.jsonl": crabtalk_file(agent="other")})
    with open_store(f"crabtalk:{root}", home=tmp_path / "home") as store:
        found = store.search("hello", agent="other", limit=1)
        assert ([one.session for one in found.results], found.total) == (["other"], 1)
        assert found.results[0].hits
        found = store.search("hello", agent="crab", limit=2, offset=2)
        assert (len(found.results), found.total) == (1, 3)


# --- making


@pytest.mark.parametrize(
    ("dialect", "facts"),
    [
        ("crabtalk", {"agent": "crab", "sender": "tg:7"}),
        ("cersei", {}),
        ("claude", {}),
        ("pi", {}),
        ("picoclaw", {"key": "agent:main:direct:9"}),
    ],
)
def test_a_new_session_is_one_of_its_program(tmp_path: Path, home: Path, dialect: str, facts: dict[str, Any]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with open_store(f"{dialect}:{root}", home=home) as store:
        session = store.create(**facts)
        assert session.messages() == []
        assert session.append(everlog.user("first")).seq == 1
        session.append(everlog.assistant("second", model="m"))
    with open_store(f"auto:{root}", home=tmp_path / "other") as store:
        (row,) = store.list()
        assert (row.id, row.metadata.source) == (session.id, dialect)
        assert [m.text for m in store.session(row.id).messages()] == ["first", "second"]
        with pytest.raises(UnsupportedError, match="format"):
            store.create()


def test_a_new_session_of_claude_code_lies_in_the_folder_of_its_project(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects = tmp_path / "projects"
    projects.mkdir()
    work = tmp_path / "some work"
    work.mkdir()
    monkeypatch.chdir(work)
    with open_store(f"claude:{projects}", home=home) as store:
        session = store.create()
        session.append(everlog.user("hi"))
    folder = project_directory(str(work))[0]
    (file,) = (projects / folder).iterdir()
    record = json.loads(file.read_bytes())
    assert (record["cwd"], record["sessionId"]) == (str(work), session.id)
    assert record["parentUuid"] is None


def test_chats_of_crabtalk_are_numbered_and_the_latest_is_the_senders_own(tmp_path: Path, home: Path) -> None:
    files = {
        "crab_user_2_talk.jsonl": crabtalk_file(),
        "crab_user_10.jsonl": crabtalk_file(),
        "crab_user_99.jsonl": crabtalk_file(sender="USER"),  # the same slug, another sender
        "crab_user_hello.jsonl": crabtalk_file(),  # without a number
    }
    root = made(tmp_path / "c", files)
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert store.list().total == 4
        latest = store.latest("crab", "user")
        assert latest is not None and latest.id == "crab_user_10"
        assert store.create(agent="crab", sender="user").id == "crab_user_11"
        assert store.create(agent="crab", sender="USER").id == "crab_user_100"


def test_the_uptime_of_a_crabtalk_session_is_told_when_it_is_closed(tmp_path: Path, home: Path) -> None:
    head = crabtalk_file().replace(b'"uptime_secs":0', b'"uptime_secs":40,"colour":"red"')
    root = made(tmp_path / "c", {"crab_user_1.jsonl": head})
    with open_store(f"crabtalk:{root}", home=home) as store:
        session = store.session("crab_user_1")
        session.append(everlog.user("one"))
        session.end_turn(duration_ms=2400)
        assert b'"uptime_secs":40' in (root / "crab_user_1.jsonl").read_bytes()
    first, *rest = (root / "crab_user_1.jsonl").read_bytes().splitlines()
    assert json.loads(first) == {**json.loads(head.splitlines()[0]), "uptime_secs": 42}
    assert rest[:2] == head.splitlines()[1:]
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert [m.text for m in store.session("crab_user_1").messages()][-1] == "one"


# --- several stores as one


def test_directories_of_the_settings_stand_beside_the_root(tmp_path: Path) -> None:
    claude = made(tmp_path / "projects", golden("claude", CLAUDE).files)
    crab = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file(title="Crab")})
    settings = Settings(
        stores=(
            FurtherStoreSettings(f"claude:{claude}", mode="write"),
            FurtherStoreSettings(f"auto:{crab}", mode="write"),
        )
    )
    with open_store(tmp_path / "root", create=True, settings=settings) as store:
        own = store.create(title="Ours")
        own.append(everlog.user("hi"))
        rows = [row.id for row in store.walk()]
        assert set(rows) == {own.id, CLAUDE, "crab_user_1"}
        assert rows[0] == own.id  # the newest
        assert [row.id for row in store.list(title="crab")] == ["crab_user_1"]
        paged, cursor = [], None
        while True:
            page = store.list(limit=1, cursor=cursor)
            paged += [row.id for row in page]
            cursor = page.next
            if cursor is None:
                break
        assert paged == rows
        store.session("crab_user_1").append(everlog.user("and now?"))
        assert store.session(store.port.resolve(CLAUDE[:8], prefix=True)).messages()
        assert store.session(own.id).messages()[0].text == "hi"
        with pytest.raises(NotFoundError):
            store.session("agent:main:nobody")
        with pytest.raises(UnsupportedError):
            store.session("crab_user_1").fork()
        forks = {store.session(own.id).fork().id}
        with pytest.raises(UnsupportedError):
            own.reclaim()
        store.session("crab_user_1").delete()
        assert {row.id for row in store.walk()} == {own.id, CLAUDE, *forks}
        assert list(crab.iterdir()) == []


@pytest.mark.parametrize("dialect", ["crabtalk", "cersei", "picoclaw", "claude", "pi"])
def test_a_turn_runs_on_a_foreign_session(tmp_path: Path, dialect: str) -> None:
    root = everything(tmp_path / "all")
    name = {"crabtalk": "crab_user_1", "cersei": "s-1", "picoclaw": "agent_main_main", "claude": CLAUDE, "pi": PI}[
        dialect
    ]
    asyncio.run(_two_turns(tmp_path / "root", root, name))
    with open_store(f"{dialect}:{root}", home=tmp_path / "other") as store:
        said = store.session(name).messages()
        assert [m.text for m in said[-2:]] == ["!say two", "two"]
        assert store.session(name).verify() == ()


async def _two_turns(home: Path, root: Path, name: str) -> None:
    settings = Settings(stores=(FurtherStoreSettings(f"auto:{root}", mode="write"),))
    runtime = open_runtime(home=home, create=True, settings=settings)
    await runtime.start()
    session = await runtime.store.session(name)
    call = '!call current_time {"timezone": "Europe/Berlin"}'
    with pytest.raises(UnconfirmedError):
        await runtime.submit(session, call)
    run = await runtime.submit(session, call, continue_here=True)
    assert "current_time" in (await run.answer()).reply.text
    run = await runtime.submit(session, "!say two", continue_here=True)
    assert (await run.answer()).reply.text == "two"
    await runtime.drain(5)
    metadata = await session.metadata()
    assert metadata.metrics.total_turns == 2
    assert not metadata.unfinished
    await runtime.store.close()


@pytest.mark.parametrize("named", ["crab", "crab/", "crab/../crab", "other"])
def test_no_command_puts_anything_of_ours_into_a_foreign_directory(tmp_path: Path, named: str) -> None:
    files = {"crab_user_1.jsonl": crabtalk_file()}
    root, other = made(tmp_path / "crab", files), made(tmp_path / "other", files)
    for arguments in (("list",), ("show", "crab_user_1"), ("verify",)):
        result = run_process(
            tmp_path / named,
            *("--store", str(root), "sessions", *arguments),
            EVERLOG_HOME=f"{tmp_path}/{named}",
            HOME=str(tmp_path / "person"),
        )
        assert (result.code == 1 and "another program" in result.err) or "inside the foreign directory" in result.err
    for place in (root, other):
        assert os.listdir(place) == ["crab_user_1.jsonl"]


def test_reading_commands_make_a_home_that_others_cannot_read(tmp_path: Path) -> None:
    root = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file()})
    for arguments in (("list",), ("show", "crab_user_1"), ("verify",)):
        result = run_process(tmp_path / "home", "--store", str(root), "sessions", *arguments)
        assert result.code == 0, result.err
    assert os.listdir(root) == ["crab_user_1.jsonl"]
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0


def test_a_lease_that_is_released_while_an_append_waits_for_the_file_refuses_it(tmp_path: Path) -> None:
    class Released(ForeignLease):
        """Held when the append is made, and not any more when the file is locked."""

        answers = iter([True, False])

        @property
        def held(self) -> bool:
            return next(self.answers)

    root = made(tmp_path / "theirs", {"crab_8.jsonl": crabtalk_file()})
    with open_store(root, home=tmp_path / "home") as store:
        session = store.list()[0].id
        before = (root / "crab_8.jsonl").read_bytes()
        with store.port.lease(session) as lease, pytest.raises(ConflictError, match="lease"):
            store.port.append(session, [everlog.user("late")], lease=Released(session, lease))
    assert (root / "crab_8.jsonl").read_bytes() == before
