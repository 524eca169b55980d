"""The file store and the file system: ids, links, modes, descriptors, two stores on one root."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import everlog
from everlog.model import user
from everlog.settings import SessionSettings, Settings
from everlog.stores.file.file_store import FileStore
from everlog.stores.file.layout import Root
from everlog.stores.file.writer_pool import MAX_OPEN_WRITERS

QUICK = Settings(session=SessionSettings(durability="os", part_bytes=2000))
BAD_IDS = [
    "../x", "..", ".", "", "/etc/passwd", "a/../../b", "a\\..\\b", "a\0b", "a\nb", "\u202e", "x" * 300,
    "é", " a", "-rf", "~root", "$(id)", "%2e%2e%2f", "lock", "metadata.json", "\ud800", "a" * 26,
    "\uff0e\uff0e\uff0f", "0" * 25 + "I", "0" * 26 + "\n", "\u212a" * 26,
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "outer" / "root"


def _tree(path: Path) -> set[str]:
    return {str(Path(folder) / name) for folder, _, names in os.walk(path) for name in names}


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_hostile_id_is_refused_and_touches_nothing(root: Path, bad: str) -> None:
    store = everlog.open_store(root, create=True, settings=QUICK)
    store.create().append(user("x"))
    before = _tree(root.parent)
    port = store.port
    for verb in (
        lambda: port.append(bad, [user("x")]),
        lambda: list(port.read(bad)),
        lambda: list(port.tail(bad)),
        lambda: port.metadata(bad),
        lambda: port.update(bad, {"name": "x"}),
        lambda: port.delete(bad),
        lambda: port.lease(bad),
        lambda: port.fork(bad),
        lambda: port.parts(bad),
        lambda: port.verify(bad),
        lambda: port.repair(bad),
    ):
        with pytest.raises(everlog.InvalidIdError):
            verb()
    with pytest.raises((everlog.InvalidIdError, everlog.NotFoundError)):
        port.resolve(bad)  # it may be an alias, which never becomes a path
    assert _tree(root.parent) == before


def test_a_symlinked_session_directory_is_refused(root: Path, tmp_path: Path) -> None:
    store = everlog.open_store(root, create=True, settings=QUICK)
    real = store.create()
    real.append(user("secret"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "session.jsonl").write_bytes(b"")
    link = "0" * 26
    os.symlink(elsewhere, root / "sessions" / link)
    before = _tree(tmp_path)
    for verb in (
        lambda: store.session(link),
        lambda: store.port.append(link, [user("x")]),
        lambda: list(store.port.read(link)),
        lambda: store.port.delete(link),
    ):
        with pytest.raises(everlog.InvalidIdError):
            verb()
    assert [row.id for row in store.list()] == [real.id]
    assert _tree(elsewhere) == {path for path in before if path.startswith(str(elsewhere))}


@pytest.mark.parametrize("name", ["session.jsonl", "lock", "turn.lock", "metadata.json"])
def test_a_link_planted_in_a_session_is_not_followed(root: Path, tmp_path: Path, name: str) -> None:
    with everlog.open_store(root, create=True, settings=QUICK) as store:
        session = store.create()
        session.append(user("x"))
        with session.lease():
            pass
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched\n")
    planted = root / "sessions" / session.id / name
    planted.unlink(missing_ok=True)
    planted.symlink_to(victim)
    with everlog.open_store(root, create=True, settings=QUICK) as store:
        for verb in (
            lambda: store.session(session.id).append(user("y")),
            lambda: store.session(session.id).rename("z"),
            lambda: store.session(session.id).lease(),
        ):
            try:
                verb()
            except everlog.EverlogError:
                pass
    assert victim.read_bytes() == b"untouched\n"


@pytest.mark.parametrize("name", ["tmp", "trash", "sessions"])
def test_a_link_in_place_of_a_directory_of_the_root_is_not_followed(root: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    everlog.open_store(root, create=True, settings=QUICK).create()
    os.rename(root / name, root / f"{name}.old")
    os.symlink(elsewhere, root / name)
    try:
        store = everlog.open_store(root, create=True, settings=QUICK)
        store.create().delete()
    except everlog.EverlogError:
        pass
    assert list(elsewhere.iterdir()) == []


def test_a_fifo_in_place_of_a_part_is_refused_at_once(root: Path) -> None:
    store = everlog.open_store(root, create=True, settings=QUICK)
    session = store.create()
    session.append(user("x"))
    os.mkfifo(root / "sessions" / session.id / "session_part2.jsonl")
    fresh = everlog.open_store(root, create=True, settings=QUICK).session(session.id)
    with pytest.raises(everlog.StoreFailedError):
        fresh.messages()
    with pytest.raises(everlog.StoreFailedError):
        fresh.append(user("y"))
    assert fresh.delete() == 2


def test_nothing_is_open_to_others_whatever_the_umask(root: Path) -> None:
    old = os.umask(0)
    try:
        with everlog.open_store(root, create=True, settings=QUICK) as store:
            session = store.create(key="sk_v1_x")
            session.append_many([user("x" * 900) for _ in range(5)])
            with session.lease():
                session.append(user("y"))
            session.fork()
            last = session.parts[-1].file
            with open(root / "sessions" / session.id / last, "ab") as log:
                log.write(b"torn")
            store.close()
            store.session(session.id).append(user("z"))
    finally:
        os.umask(old)
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            assert mode & 0o077 == 0, (path, oct(mode))
    parts = [part.file for part in session.parts]
    modes = [stat.S_IMODE((root / "sessions" / session.id / part).stat().st_mode) for part in parts]
    assert set(modes[:-1]) == {0o400}


def test_a_loose_sessions_directory_is_tightened_and_the_root_left_alone(root: Path) -> None:
    everlog.open_store(root, create=True, settings=QUICK).create()
    os.chmod(root, 0o755)
    os.chmod(root / "sessions", 0o755)
    everlog.open_store(root, create=True, settings=QUICK)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "sessions").stat().st_mode) == 0o700


def test_looking_makes_nothing(root: Path) -> None:
    root.mkdir(parents=True)
    store = everlog.open_store(root, create=True, settings=QUICK)
    assert len(store.list()) == 0
    assert store.latest() is None
    with pytest.raises(everlog.NotFoundError):
        store.session("0" * 26)
    with pytest.raises(everlog.NotFoundError):
        store.session("sk_v1_x")
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_root_of_another_user_is_refused(root: Path) -> None:
    root.mkdir(parents=True)
    os.chown(root, 12345, 12345)
    with pytest.raises(everlog.StoreFailedError, match="another user"):
        everlog.open_store(root, create=True, settings=QUICK)


def test_a_file_as_root_is_refused(root: Path) -> None:
    root.parent.mkdir(parents=True)
    root.write_text("x")
    with pytest.raises(everlog.StoreFailedError):
        everlog.open_store(root, create=True, settings=QUICK)


def test_at_most_64_sessions_keep_descriptors(root: Path) -> None:
    store = everlog.open_store(root, create=True, settings=QUICK)
    sessions = [store.create() for _ in range(MAX_OPEN_WRITERS + 20)]
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for round_number in range(2):
        for session in sessions:
            session.append(user(f"round {round_number}"))
    if before:
        assert len(os.listdir("/proc/self/fd")) - before <= 3 * MAX_OPEN_WRITERS + 5
    assert all(len(session.records()) == 2 for session in sessions)
    store.close()
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_unfinished_reads_give_their_descriptors_back(root: Path) -> None:
    store = everlog.open_store(root, create=True, settings=QUICK)
    session = store.create()
    session.append_many([user("x" * 500) for _ in range(20)])
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        session.entries()  # never started
        next(session.entries())  # never finished
        next(store.port.tail(session.id))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_session_deleted_under_another_store_is_gone_for_it_too(root: Path) -> None:
    one, two = (
        everlog.open_store(root, create=True, settings=QUICK),
        everlog.open_store(root, create=True, settings=QUICK),
    )
    session = one.create()
    session.append(user("a"))
    there = two.session(session.id)
    there.append(user("b"))
    assert session.append(user("c")).seq == 3
    session.delete()
    with pytest.raises(everlog.NotFoundError):
        there.append(user("d"))
    with pytest.raises(everlog.NotFoundError):
        there.metadata  # noqa: B018
    assert os.listdir(root / "sessions") == []
    assert os.listdir(root / "trash") == []


def test_two_stores_in_one_process_share_a_dense_numbering(root: Path) -> None:
    one, two = (
        everlog.open_store(root, create=True, settings=QUICK),
        everlog.open_store(root, create=True, settings=QUICK),
    )
    session = one.create()
    other = two.session(session.id)
    for number in range(30):
        (session if number % 2 else other).append(user(f"{number} " + "x" * 200))
    assert [record.seq for record in session.records()] == list(range(1, 31))
    assert len(session.parts) > 2
    assert session.verify() == ()
    with session.lease(), pytest.raises(everlog.SessionBusyError, match="a turn of this session is running"):
        other.lease()


def test_network_file_systems_are_refused(root: Path, tmp_path: Path) -> None:
    root.mkdir(parents=True)
    here = Root(root, durable=False)
    table = tmp_path / "mountinfo"
    device = os.stat(root).st_dev
    table.write_text(f"1 0 {os.major(device)}:{os.minor(device)} / / rw - nfs4 server:/x rw\n")
    with pytest.raises(everlog.StoreFailedError, match="network"):
        here.check(mounts=str(table))
    here.check()


def test_leftovers_of_a_crash_are_named(root: Path) -> None:
    store = everlog.open_store(root, create=True, settings=QUICK)
    store.create()
    (root / "tmp" / ("0" * 26)).mkdir()
    port = store.port
    assert isinstance(port, FileStore)
    assert port.leftovers() == [f"tmp/{'0' * 26}"]
    assert len(store.list()) == 1
