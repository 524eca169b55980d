"""The copy of a log for a fork, byte for byte, so that seq and crc of every record stay."""

from __future__ import annotations

import os

from everlog.stores.file import disk
from everlog.stores.file.log_reader import LogReader


def copy_log(log: LogReader, end: tuple[int, int], directory: int, *, durable: bool) -> None:
    """Copy the parts up to `end` (part, offset) into another directory."""
    last, size = end
    for number in (n for n in log.numbers if n <= last):
        part = log.part(number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        copy = disk.open_file(part.file, flags, directory)
        try:
            disk.copy(part.descriptor, copy, 0, size if number == last else part.size)
            if durable:
                disk.sync(copy)
            if number != last:
                os.fchmod(copy, 0o400)
        finally:
            os.close(copy)
