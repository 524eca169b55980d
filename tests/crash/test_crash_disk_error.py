"""A genuine I/O error, no injection: the disk below the file system is full.

The file system has 64 MB, the image it lies in has room for 16: writing succeeds, and fails when
the bytes are to reach the disk. A second fsync says yes, with the data gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import everlog
from tests.crash.checker import violations
from tests.crash.children import summary
from tests.crash.control import Options
from tests.crash.interfaces import name_of, open_log, payload
from tests.crash.sample_records import mounted

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("as_root")]

OPTIONS = Options(part_bytes=3_000_000)


def test_what_was_acknowledged_before_a_disk_error_is_there_after_it(tmp_path: Path) -> None:
    found, refused = write_until_it_fails("everlog", tmp_path)
    assert not found, summary(found)
    assert set(refused) == {"StoreFailedError"}


def test_the_control_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    found, refused = write_until_it_fails("Careful", tmp_path)
    assert not found, summary(found)
    assert refused


@pytest.mark.parametrize("twin", ["RetriesFsync", "NeverSyncs"])
def test_a_twin_that_asks_again_or_not_at_all_loses_what_it_acknowledged(twin: str, tmp_path: Path) -> None:
    found, _ = write_until_it_fails(twin, tmp_path)
    assert [one for one in found if "acknowledged" in one or "cannot be" in one]


def write_until_it_fails(kind: str, folder: Path) -> tuple[list[str], list[str]]:
    """Append until the disk fails, mount again with room, check."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing (apt-get install e2fsprogs)")
    below, disk = folder / "below", folder / "disk"
    acked: dict[str, int] = {}
    refused: list[str] = []
    with mounted(below, "-t", "tmpfs", "-o", "size=20m", "tmpfs"):
        ballast, image = below / "ballast", below / "image"
        ballast.write_bytes(bytes(4_000_000))
        image.touch()
        os.truncate(image, 64_000_000)
        make = ["mkfs.ext4", "-q", "-m0", "-E", "lazy_itable_init=1,nodiscard", str(image)]
        subprocess.run(make, check=True, capture_output=True)
        with mounted(disk, "-o", "loop,errors=continue", str(image)):
            log = open_log(kind, disk / "root", OPTIONS)
            for number in range(60):
                text = payload("A", number, 500_000)
                try:
                    acked[name_of(text)] = log.append(text)
                except (everlog.EverlogError, OSError) as error:
                    refused.append(type(error).__name__)
                    if len(refused) == 3:
                        break
            log.close()
        ballast.unlink()
        with mounted(disk, "-o", "loop", str(image)):
            return violations(kind, disk / "root", acked, options=OPTIONS), refused
