"""A full disk and a read-only one: every reading command answers as it does with room."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import everlog
from everlog.daemon.run_directory import RunDirectory
from everlog.interop.archive.backup import copy as archive_files
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.importer import import_session
from everlog.interop.transcript_sources import FileSource
from everlog.memory.memory_directory import MemoryDirectory
from everlog.ports import Reporting
from everlog.stores.file.json_file import JsonFile
from tests.crash.sample_records import mounted
from tests.crash.small_disk import Snapshot, small_disk
from tests.crash.stale_stores import prepare
from tests.foreign.foreign_directories import crabtalk_file, made

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("as_root")]


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_every_reading_command_answers_as_with_room_and_changes_nothing(tmp_path: Path, state: str) -> None:
    with small_disk(tmp_path) as disk:
        places = prepare(disk, tmp_path)
        commands = places.commands()
        if state == "full":
            disk.fill()
        else:
            disk.remount("ro")
        before = disk.snapshot()
        outputs = places.run(commands, tmp_path / "without")
        assert [(command, output) for command, output in zip(commands, outputs, strict=True) if output.code] == []
        assert changed_paths(before, disk.snapshot()) == []
        refused = places.run([["sessions", "new"], ["memory", "add", "x" * 2000], ["doctor"]], tmp_path)
        disk.free()
        assert [output.code for output in places.run([["doctor"]], tmp_path)] == [0]  # finds the unmarked record
        with_room = places.run(commands, tmp_path / "with")
    for command, output, expected in zip(commands, outputs, with_room, strict=True):
        assert output.out.replace("/without/", "/with/") == expected.out, command
    assert exported(tmp_path / "without") == exported(tmp_path / "with")
    for command, output in zip(commands, outputs, strict=True):
        if "giraffe" in command:
            assert output.out.count("«giraffe»") >= 2, command
    reason = "No space left on device" if state == "full" else f"{disk.path}/home[^ ]* is on a read-only file system"
    for output in refused[:2]:
        assert output.code == 1 and re.search(reason, output.err) and output.err.count("\n") == 1, output
    assert (refused[2].code, "disk is full" in refused[2].out) == (1, state == "full")


def exported(directory: Path) -> dict[str, bytes]:
    """The files of an export."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.md")}


def changed_paths(before: Snapshot, after: Snapshot) -> list[str]:
    """What differs, apart from what is derived from foreign files: a mirror takes what fits."""
    paths = sorted(before.keys() | after.keys())
    return [path for path in paths if before.get(path) != after.get(path) and "live" not in Path(path).parts]


def test_a_full_disk_is_one_error_whatever_is_written(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        home = disk.path / "home"
        with everlog.open_store(home=home, create=True) as store:
            session = store.create()
            session.append("hello")
            source = made(tmp_path / "source", {"crab_user_1.jsonl": crabtalk_file()}) / "crab_user_1.jsonl"
            foreign = crabtalk.read(FileSource(source, has_parts=False))
            disk.fill()
            cron: JsonFile[dict[str, str]] = JsonFile(home / "run" / "cron.json", dict[str, str])
            big = {"job": "x" * 5000}
            memory = MemoryDirectory(home / "memory" / "main")
            writes: list[Callable[[], object]] = [
                lambda: session.append("x" * 5000),
                store.create,
                lambda: session.rename("x" * 5000),
                session.fork,
                lambda: memory.put("note.md", "x" * 5000),
                lambda: everlog.open_store(home / "other", create=True),
                lambda: cron.save(big),
                lambda: RunDirectory(home).ensure_token(),
                lambda: import_session(store.port, crabtalk, foreign),
                lambda: archive_files(home, [tmp_path / "image"]),
            ]
            for write in writes:
                with pytest.raises(everlog.StoreFullError, match="No space left on device"):
                    write()
            assert [message.text for message in session.messages()] == ["hello"]


def test_an_index_that_fills_the_disk_goes_on_in_memory(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk, everlog.open_store(disk.path / "home", create=True) as store:
        for _ in range(20):
            store.create().append_many([everlog.user(f"hello {os.urandom(3000).hex()}") for _ in range(10)])
        assert store.list().total == 20
        disk.fill(but=6 << 20)  # the index of the texts does not fit
        assert store.search("hello").total == 20
        last = store.create(title="zebra")
        last.append("hello at last")
        assert (store.search("hello").total, store.search("zebra").total, store.latest()) == (21, 1, last)
        disk.free()
        assert (store.search("hello").total, store.search("zebra").total, store.latest()) == (21, 1, last)
        with everlog.open_store(disk.path / "home") as other:
            assert other.search("hello").total == 21
        reporting = store.port.capability(Reporting)
        assert reporting is not None
        assert [report.partition("index.db")[2][:16] for report in reporting.reports] == [
            " cannot be writt",
            " can be written ",
        ]


def test_what_another_mount_writes_is_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with everlog.open_store(tmp_path / "home") as writer, mounted(tmp_path / "view", "--bind", str(tmp_path / "home")):
        first = writer.create(title="zebra")
        first.append("hello")
        subprocess.run(["mount", "-o", "remount,bind,ro", tmp_path / "view"], check=True)
        with everlog.open_store(tmp_path / "view") as reader:
            for number in range(1, 4):
                assert [row.metadata.message_count for row in reader.list()] == [number]
                assert reader.search(f"hello{number}").total == 0
                first.append(f"hello{number}")
                writer.search("hello")  # writes to the index
                assert reader.search(f"hello{number}").total == 1
            with pytest.raises(everlog.StoreFailedError, match="view is on a read-only file system"):
                reader.create()
