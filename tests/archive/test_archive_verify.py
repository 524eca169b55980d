"""Damage to the archive is found, named and, while the source is there, set right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everlog.errors import NotFoundError
from everlog.interop.archive.archive_listing import list_archive
from everlog.interop.archive.restore import restore
from everlog.interop.archive.verify import verify
from tests.archive.trees import log, objects, restored, run, tree


def _flip(file: Path, place: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


def _named(root: Path) -> list[tuple[str, str]]:
    return [(one.file, one.problem) for one in verify(root).damage]


def test_a_flipped_bit_anywhere_in_an_object_is_found_and_named(root: Path, source: Path) -> None:
    run(root, source)
    (large,) = [one for one in objects(root) if one.stat().st_size > 500][:1]
    good = large.read_bytes()
    for place in range(0, len(good), 7):
        _flip(large, place, place % 8)
        if (damage := verify(root).damage) == []:
            # The header of a frame has bits that mean nothing: then the content is the same.
            assert place < 8
            large.write_bytes(good)
            continue
        (one,) = damage
        assert one.file == str(large.relative_to(root / "archive"))
        assert one.needed_by_count == 1 and one.needed_by[0].startswith(str(source))
        large.write_bytes(good)
    assert verify(root).damage == []


def test_a_missing_object_is_named_with_the_files_that_need_it(root: Path, source: Path) -> None:
    (source / "copy.jsonl").write_bytes((source / "-work-x" / "bbbb.jsonl").read_bytes())
    run(root, source / "copy.jsonl", source / "-work-x" / "bbbb.jsonl")
    (one,) = objects(root)
    one.unlink()
    (damage,) = verify(root).damage
    assert damage.problem == "it is missing"
    assert damage.needed_by_count == 2


def test_reading_the_sources_again_replaces_what_is_damaged(root: Path, source: Path, tmp_path: Path) -> None:
    file = source / "-work-x" / "bbbb.jsonl"
    run(root, source)
    with file.open("ab") as opened:
        opened.write(log(1, 8))
    run(root, source)
    for number, one in enumerate(objects(root)):
        one.unlink() if number % 2 else _flip(one, -3)
    assert verify(root).damage
    before = len(os.listdir(root / "archive" / "manifests"))
    run(root, source, again=True)
    assert verify(root).damage == []
    assert len(os.listdir(root / "archive" / "manifests")) == before
    restore(root, tmp_path / "out")
    assert tree(restored(tmp_path / "out", source)) == tree(source)


def test_a_damaged_manifest_is_named_and_hides_no_other_line(root: Path, source: Path) -> None:
    run(root, source)
    manifest = root / "archive" / "manifests" / "00000001.jsonl"
    _flip(manifest, manifest.read_bytes().index(b"bbbb.jsonl"))
    assert _named(root) == [("manifests/00000001.jsonl", "line 7: the crc is wrong")]
    (root / "archive" / "state.db").unlink()
    assert list_archive(root, ["*.jsonl"], limit=99).matching == 3


def test_a_manifest_that_was_cut_or_replaced_is_named(root: Path, source: Path) -> None:
    run(root, source)
    (source / "-work-x" / "bbbb.jsonl").write_bytes(b"short")
    run(root, source)
    first, second = sorted((root / "archive" / "manifests").iterdir())
    good = first.read_bytes()
    lines = good.splitlines(keepends=True)
    first.write_bytes(b"".join(lines[:-1]))
    assert ("manifests/00000001.jsonl", "it has 7 lines instead of 8") in _named(root)
    first.write_bytes(good[:-5])
    assert ("manifests/00000001.jsonl", "the last line has no newline") in _named(root)
    first.write_bytes(b"")
    assert ("manifests/00000001.jsonl", "its first line is missing") in _named(root)
    first.unlink()
    assert _named(root) == [("manifests/00000001.jsonl", "it is missing")]
    first.write_bytes(good)
    assert _named(root) == []
    second.write_bytes(second.read_bytes().replace(b'"lines":1', b'"lines":2'))
    assert _named(root)[0][0] == "manifests/00000002.jsonl"


def test_an_object_that_a_killed_run_left_is_counted_and_no_damage(root: Path, source: Path) -> None:
    run(root, source / "-work-x" / "aaaa.jsonl")
    (one,) = objects(root)
    manifests = root / "archive" / "manifests"
    (manifests / "00000001.jsonl").unlink()
    done = verify(root)
    assert (done.objects, done.unused, done.damage) == (1, 1, [])
    run(root, source / "-work-x" / "aaaa.jsonl")
    assert verify(root).unused == 0 and objects(root) == [one]


def test_without_an_archive_there_is_nothing_to_verify(root: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing is archived"):
        verify(root)
    assert list_archive(root, limit=1).sources == []
    assert not root.exists()
