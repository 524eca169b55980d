"""What a run takes, and what it writes for it."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from everlog.errors import NotFoundError, SessionBusyError
from everlog.interop.archive.archive_folder import open_for_writing
from everlog.interop.archive.archive_listing import FileRow, list_archive
from everlog.interop.archive.backup import copy
from everlog.interop.archive.objects import BLOCK_BYTES
from everlog.interop.archive.restore import restore
from everlog.interop.archive.verify import verify
from tests.archive.trees import log, needs_user, object_bytes, objects, prints, restored, run, tree


def _file(root: Path, name: str) -> FileRow:
    (one,) = list_archive(root, [name], limit=10).files
    return one


def test_everything_below_a_source_is_taken_byte_for_byte(root: Path, source: Path, tmp_path: Path) -> None:
    done = run(root, source)
    assert (done.files, done.new, done.changed, done.gone) == (7, 7, 0, 0)
    assert done.bytes_read == sum(map(len, tree(source).values()))
    restore(root, tmp_path / "out")
    assert tree(restored(tmp_path / "out", source)) == tree(source)
    assert verify(root).damage == []


def test_nobody_else_may_look_into_the_archive(root: Path, source: Path) -> None:
    run(root, source)
    for path in [root / "archive", *(root / "archive").rglob("*")]:
        allowed = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == allowed, path


def test_a_second_run_over_an_unchanged_tree_writes_nothing(root: Path, source: Path) -> None:
    run(root, source)
    before = prints(root)
    done = run(root, source)
    assert (done.files, done.new, done.changed, done.bytes_read, done.bytes_written) == (*(7, 0, 0), *(0, 0))
    assert prints(root) == before


def test_a_file_that_looks_unchanged_is_not_read(root: Path, source: Path) -> None:
    """Other bytes under the same size, time and inode would be seen by whoever reads them."""
    run(root, source)
    file = source / "-work-x" / "bbbb.jsonl"
    status = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"X" * 100)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    before = prints(root)
    assert run(root, source).bytes_read == 0
    assert prints(root) == before
    assert run(root, source, again=True).changed == 1


def test_a_touched_file_makes_no_version(root: Path, source: Path) -> None:
    run(root, source)
    file = source / "-work-x" / "bbbb.jsonl"
    os.utime(file, ns=(5, 5))
    done = run(root, source)
    assert (done.changed, done.bytes_written) == (0, 0)
    assert len(_file(root, "bbbb.jsonl").versions) == 1
    assert run(root, source).bytes_read == 0


def test_a_large_log_that_grew_by_a_line_writes_about_a_line(root: Path, source: Path) -> None:
    file = source / "large.jsonl"
    file.write_bytes(log(50_000))  # 10 MB: two full blocks and a part
    run(root, source)
    before = object_bytes(root)
    with file.open("ab") as opened:
        opened.write(log(5, 9))
    done = run(root, source)
    assert (done.changed, len(_file(root, "large.jsonl").versions)) == (1, 2)
    assert 0 < object_bytes(root) - before == done.bytes_written < 1_000


@pytest.mark.slow
def test_a_log_that_grows_a_hundred_times_is_written_a_few_times(root: Path, source: Path, tmp_path: Path) -> None:
    file = source / "growing.jsonl"
    data = b""
    for _ in range(100):
        data += os.urandom(500)
        with file.open("ab") as opened:
            opened.write(data[-500:])
        run(root, file)
    assert object_bytes(root) < len(data) * 8  # as often as 100 has binary digits, and frames
    restore(root, tmp_path / "out", ["growing.jsonl"])
    assert restored(tmp_path / "out", file).read_bytes() == data


def test_a_log_that_grew_and_whose_first_line_changed_is_taken_as_it_is(
    root: Path, source: Path, tmp_path: Path
) -> None:
    """CrabTalk rewrites its first line; the end alone would not tell."""
    file = source / "large.jsonl"
    old = log(50_000)
    file.write_bytes(old)
    run(root, source)
    new = b"{}" + old[2:] + log(1, 7)
    file.write_bytes(new)
    assert run(root, source).changed == 1
    restore(root, tmp_path / "out", ["large.jsonl"])
    assert restored(tmp_path / "out", file).read_bytes() == new


def test_a_rewritten_file_keeps_what_it_was(root: Path, source: Path, tmp_path: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    old = file.read_bytes()
    run(root, source)
    file.write_bytes(b"short")
    run(root, source)
    versions = _file(root, "bbbb.jsonl").versions
    assert [one["size"] for one in versions] == [len(old), 5]
    restore(root, tmp_path / "old", ["bbbb.jsonl"], version=versions[0]["sha256"][:8])
    assert restored(tmp_path / "old", file).read_bytes() == old


def test_what_vanished_from_the_source_stays(root: Path, source: Path, tmp_path: Path) -> None:
    before = tree(source)
    run(root, source)
    (source / "-work-x" / "bbbb.jsonl").unlink()
    done = run(root, source)
    assert (done.files, done.gone) == (6, 1)
    assert _file(root, "bbbb.jsonl").gone
    shutil.rmtree(source)
    assert run(root, source).gone == 6
    assert run(root, source).gone == 0
    restore(root, tmp_path / "out")
    assert tree(restored(tmp_path / "out", source)) == before


def test_a_file_that_came_back_is_no_longer_gone(root: Path, source: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    run(root, source)
    away = file.rename(source.parent / "away")
    run(root, source)
    assert _file(root, "bbbb.jsonl").gone
    away.rename(file)
    assert run(root, source).bytes_written == 0
    assert not _file(root, "bbbb.jsonl").gone
    assert run(root, source).bytes_read == 0


def test_a_renamed_log_is_not_stored_again(root: Path, source: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    run(root, source)
    with file.open("ab") as opened:  # now it is two pieces, as no other file would be cut
        opened.write(log(1, 8))
    run(root, source)
    before = objects(root)
    file.rename(file.with_name("bbbb_a_title.jsonl"))
    done = run(root, source)
    assert (done.new, done.gone, done.bytes_written) == (1, 1, 0)
    assert objects(root) == before


def test_a_copy_is_stored_once_and_a_fork_shares_its_full_blocks(root: Path, source: Path) -> None:
    data = os.urandom(2 * BLOCK_BYTES + 1000)
    (source / "one.jsonl").write_bytes(data)
    run(root, source)
    before = object_bytes(root)
    (source / "two.jsonl").write_bytes(data)
    assert run(root, source).bytes_written == 0
    (source / "fork.jsonl").write_bytes(data[: 2 * BLOCK_BYTES] + b"another end")
    run(root, source)
    assert object_bytes(root) - before < 100


def test_names_of_any_bytes_survive(root: Path, tmp_path: Path) -> None:
    source = os.fsencode(tmp_path / "odd")
    os.mkdir(source)
    names = [b"\xff\xfe", b"a\nb", b"\xe2\x80\xa8", b"'\"\\%41", b"-o", "é".encode(), b"\x1b[31m"]
    names += [b"n" * 255]
    for name in names:
        with open(os.path.join(source, name), "wb") as opened:
            opened.write(b"of " + name)
    run(root, tmp_path / "odd")
    assert run(root, tmp_path / "odd").bytes_read == 0
    output = tmp_path / "out"
    restore(root, output)
    back = os.fsencode(restored(output, tmp_path / "odd"))
    assert sorted(os.listdir(back)) == sorted(names)
    for name in names:
        with open(os.path.join(back, name), "rb") as opened:
            assert opened.read() == b"of " + name


def test_a_link_is_noted_and_not_followed(root: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (source / "link").symlink_to(tmp_path / "secret")
    (source / "folder").symlink_to(tmp_path)
    (source / "dangling").symlink_to("nowhere")
    done = run(root, source)
    assert (done.files, done.links) == (7, 3)
    assert _file(root, "dangling").target == "nowhere"
    before = prints(root)
    run(root, source)
    assert prints(root) == before


def test_a_file_that_became_a_link_keeps_its_versions(root: Path, source: Path, tmp_path: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    old = file.read_bytes()
    run(root, source)
    file.unlink()
    file.symlink_to("aaaa.jsonl")
    run(root, source)
    restore(root, tmp_path / "out", ["bbbb.jsonl"])
    assert restored(tmp_path / "out", source).joinpath("-work-x/bbbb.jsonl").read_bytes() == old


def test_special_files_are_skipped(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(source / "fifo")
    monkeypatch.chdir(source)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert run(root, source).special == 2


def test_the_archive_does_not_take_itself(root: Path) -> None:
    root.mkdir()
    (root / "x.jsonl").write_bytes(log(1))
    assert run(root, root).files == 1
    assert run(root, root).files == 1
    assert run(root, root / "archive").files == 0


def test_of_a_folder_that_cannot_be_read_nothing_is_said_to_be_gone(root: Path, source: Path, tmp_path: Path) -> None:
    """A path that is too long cannot be looked into, not even by root."""
    deep = source / "deep"
    deep.mkdir()
    (deep / "kept.jsonl").write_bytes(log(1))
    run(root, source)
    _bury(deep)
    done = copy(root, [source])
    (problem,) = done.problems
    assert "deep" in problem.path and problem.problem == "File name too long"
    assert (done.gone, done.files) == (0, 8)


def _bury(folder: Path) -> None:
    """Make folders in it, each in the one before, until their path is too long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=here)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@needs_user
def test_an_unreadable_folder_is_named_and_hides_no_other(root: Path, source: Path) -> None:
    run(root, source)
    folder = source / "-work-x" / "aaaa"
    folder.chmod(0)
    try:
        done = copy(root, [source])
    finally:
        folder.chmod(0o700)
    assert [one.path for one in done.problems] == [os.path.realpath(folder)]
    assert done.gone == 0


def test_a_source_that_never_was_there_is_refused_and_nothing_is_made(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        copy(root, [tmp_path / "none"])
    assert not root.exists()
    assert copy(root, [tmp_path / "none"], skip_missing=True).sources == []
    assert not root.exists()


def test_a_source_within_another_is_taken_once(root: Path, source: Path) -> None:
    assert run(root, source, source / "-work-x", source).files == 7


def test_times_and_inodes_beyond_64_bits_are_no_problem(root: Path, source: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    os.utime(file, ns=(0, (1 << 33) * 10**9))  # the year 2242 and, where it can be, 2300
    with_time = file.stat().st_mtime_ns
    try:
        os.utime(file, ns=(0, (1 << 63) + 10**9))
    except (OSError, OverflowError):
        os.utime(file, ns=(0, with_time))
    run(root, source)
    assert run(root, source).bytes_read == 0


def test_a_second_run_at_the_same_time_is_refused(root: Path, source: Path) -> None:
    with open_for_writing(root), pytest.raises(SessionBusyError, match="the archive is held by this process"):
        copy(root, [source])
    run(root, source)


@pytest.mark.parametrize("damage", ["deleted", "garbage", "truncated", "older"])
def test_the_state_is_made_anew_from_the_manifests(root: Path, source: Path, damage: str) -> None:
    run(root, source)
    state = root / "archive" / "state.db"
    older = state.read_bytes()
    (source / "-work-x" / "bbbb.jsonl").write_bytes(b"short")
    (source / "-work-x" / "empty.jsonl").unlink()
    run(root, source)
    expected = list_archive(root, ["*"], limit=100)
    if damage == "deleted":
        state.unlink()
    else:
        data = {"garbage": os.urandom(9000), "truncated": older[:5000], "older": older}[damage]
        state.write_bytes(data)
    assert list_archive(root, ["*"], limit=100) == expected
    done = run(root, source)
    assert (done.bytes_read, done.bytes_written) == (0, 0)
