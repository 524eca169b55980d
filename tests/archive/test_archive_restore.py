"""What is restored is what was archived, below the folder that was given."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from everlog.errors import ConflictError, InvalidIdError, NotFoundError
from everlog.interop.archive.archive_folder import open_for_writing
from everlog.interop.archive.backup import copy
from everlog.interop.archive.manifest import File, path_fields
from everlog.interop.archive.restore import restore
from tests.archive.trees import objects, restored, run, tree

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_file_comes_back_with_its_time_and_its_mode_for_the_owner(root: Path, source: Path, tmp_path: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    file.chmod(0o755)
    os.utime(file, ns=(0, 1_234_567_890_123_456_789))
    other = source / "-work-x" / "aaaa.jsonl"
    other.chmod(0o400)
    run(root, source)
    restore(root, tmp_path / "out")
    status = restored(tmp_path / "out", file).stat()
    assert status.st_mtime_ns == 1_234_567_890_123_456_789
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert stat.S_IMODE(restored(tmp_path / "out", other).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("bbbb.jsonl", 1),
        ("*.jsonl", 4),
        ("memory", 1),
        ("subagents/*.json", 1),
        ("aaaa", 3),
        ("bbb", 0),
        ("b?b[a-c].jsonl", 1),
    ],
)
def test_a_pattern_is_the_end_of_a_path_or_of_a_folder_above(
    root: Path, source: Path, tmp_path: Path, pattern: str, count: int
) -> None:
    run(root, source)
    if not count:
        with pytest.raises(NotFoundError, match="matches"):
            restore(root, tmp_path / "out", [pattern])
        assert not (tmp_path / "out").exists()
    else:
        assert len(restore(root, tmp_path / "out", [pattern]).files) == count


def test_a_path_is_a_pattern(root: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "[x]").mkdir()
    (source / "[x]" / "y").write_text("y")
    run(root, source)
    assert len(restore(root, tmp_path / "0", [str(source / "[x]")]).files) == 1
    assert len(restore(root, tmp_path / "1", [str(source / "-work-x" / "aaaa")]).files) == 3
    monkeypatch.chdir(source / "-work-x")
    assert len(restore(root, tmp_path / "2", ["./aaaa.jsonl"]).files) == 1
    assert len(restore(root, tmp_path / "3", ["."]).files) == 7


def test_a_time_chooses_what_was_archived_until_then(root: Path, source: Path, tmp_path: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    for second, text in ((100, b"one"), (200, b"two"), (300, b"three")):
        file.write_bytes(text)
        copy(root, [file], clock=lambda second=second: second)  # type: ignore[misc]
    at = "1970-01-01T00:03:20.000Z"
    restore(root, tmp_path / "out", at=at)
    assert restored(tmp_path / "out", file).read_bytes() == b"two"
    with pytest.raises(NotFoundError):
        restore(root, tmp_path / "none", at="1970-01-01T00:00:00.000Z")


def test_nothing_is_written_over(root: Path, source: Path, tmp_path: Path) -> None:
    run(root, source)
    there = restored(tmp_path / "out", source / "-work-x" / "memory" / "MEMORY.md")
    there.parent.mkdir(parents=True)
    there.write_text("mine")
    with pytest.raises(ConflictError, match="already exists"):
        restore(root, tmp_path / "out")
    assert list(tree(tmp_path / "out").values()) == [b"mine"]


@pytest.mark.parametrize("path", [b"/../../escaped", b"/a/../../escaped", b"../escaped", b"/a/./b", b"/", b"/a\0b"])
def test_a_path_that_leads_elsewhere_is_refused(root: Path, tmp_path: Path, path: bytes) -> None:
    """Whoever can write to the archive cannot make us write anywhere."""
    with open_for_writing(root) as opened:
        facts = {"size": 0, "mtime_ns": 0, "inode": 0, "mode": 0o600, "sha256": EMPTY}
        line = File(**path_fields(path), **facts, chunks=())  # type: ignore[arg-type]
        opened.manifests.write(1, "2026-01-01T00:00:00.000Z", [line], "")
    with pytest.raises((InvalidIdError, NotFoundError)):
        restore(root, tmp_path / "deep" / "out")
    assert not (tmp_path / "escaped").exists() and not (tmp_path / "deep").exists()


def test_a_link_in_the_folder_is_not_followed(root: Path, source: Path, tmp_path: Path) -> None:
    run(root, source)
    (tmp_path / "elsewhere").mkdir()
    place = restored(tmp_path / "out", source)
    place.mkdir(parents=True)
    (place / "-work-x").symlink_to(tmp_path / "elsewhere")
    done = restore(root, tmp_path / "out")
    assert len(done.problems) == 7 and "symbolic link" in done.problems[0].problem
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_damaged_file_is_named_and_the_others_are_restored(root: Path, source: Path, tmp_path: Path) -> None:
    run(root, source)
    objects(root)[0].write_bytes(b"")
    done = restore(root, tmp_path / "out")
    assert len(done.problems) == 1 and "is damaged" in done.problems[0].problem
    assert len(done.files) == len(tree(tmp_path / "out")) == 6
