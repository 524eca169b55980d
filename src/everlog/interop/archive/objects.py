"""Objects: at most 4 MB of bytes each, stored once, under their own SHA-256.

`put` may be called from many threads. What it returned is durable after the next `settle`, and
only then may a manifest name it. An object is a plain zstd frame: `zstd -d` reads it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING

from everlog.errors import LogDamagedError, NotFoundError, SettingsError
from everlog.stores.file.disk import (
    errors_mapped,
    get,
    open_directory,
    open_file,
    sync,
    sync_directory,
    write_all,
)

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

BLOCK = 4 << 20  # of a file; no object is larger
LEVEL = 3
ENDING = ".zst"
_FOLDER = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{62}\.zst")
_CAP = BLOCK + (BLOCK >> 7) + 4096  # what a frame of random bytes can take, and more


class Objects:
    """The directory of objects."""

    def __init__(self, directory: int, tmp: int = -1, *, recheck: bool = False) -> None:
        self._directory = directory
        self._tmp = tmp
        self._recheck = recheck  # read what is there already, and replace it if it is damaged
        self._own = threading.local()  # a compressor serves one thread at a time
        self._names = count().__next__
        self._counting = threading.Lock()
        self._unsettled: set[str] = set()
        self.written = 0  # bytes, compressed

    def put(self, data: memoryview) -> str:
        """Store bytes unless they are there; gives their name."""
        name = sha256(data).hexdigest()
        # One that is there may have been renamed by a run that was killed before it synced.
        self._unsettled.add(name[:2])
        if not self._has(name, len(data)):
            packed = self._compressor().compress(data)
            self._place(name, packed)
            with self._counting:
                self.written += len(packed)
        return name

    def _has(self, name: str, size: int) -> bool:
        try:
            os.stat(path_of(name), dir_fd=self._directory, follow_symlinks=False)
            if self._recheck:
                self.get(name, size)
        except (FileNotFoundError, NotFoundError, LogDamagedError):
            return False
        return True

    def _place(self, name: str, packed: bytes) -> None:
        temporary = f"{os.getpid()}.{self._names()}"
        descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._tmp)
        try:
            try:
                write_all(descriptor, packed)
                sync(descriptor)
            finally:
                os.close(descriptor)
            with suppress(FileExistsError):
                os.mkdir(name[:2], 0o700, dir_fd=self._directory)
            os.rename(temporary, path_of(name), src_dir_fd=self._tmp, dst_dir_fd=self._directory)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._tmp)
            raise

    def settle(self) -> None:
        """Make durable under which names the objects of all `put` until now are."""
        folders, self._unsettled = self._unsettled, set()
        for folder in sorted(folders):
            descriptor = open_directory(folder, self._directory)
            try:
                sync_directory(descriptor)
            finally:
                os.close(descriptor)
        if folders:
            sync_directory(self._directory)

    def get(self, name: str, size: int | None = None) -> bytes:
        """The bytes of an object, which are those of its name and of this size; or LogDamagedError."""
        from zstandard import ZstdError, get_frame_parameters  # noqa: PLC0415 - loaded by then

        decompressor = self._decompressor()
        with errors_mapped(f"reading object {name}"):
            packed = get(path_of(name), self._directory, _CAP)
        try:
            # The size comes first: what is damaged must not make us take gigabytes.
            if get_frame_parameters(packed).content_size > BLOCK:
                raise LogDamagedError(f"object {name} is damaged: it is too large")
            data = decompressor.decompress(packed, max_output_size=BLOCK)
        except ZstdError as error:
            raise LogDamagedError(f"object {name} is damaged: {error}") from error
        if sha256(data).hexdigest() != name:
            raise LogDamagedError(f"object {name} is damaged: its content is not that of its name")
        if size is not None and len(data) != size:
            raise LogDamagedError(f"object {name} has {len(data)} bytes and not {size}")
        return data

    def walk(self) -> Iterator[tuple[str, int]]:
        """The names of all objects and how many bytes each takes here, in order."""
        with errors_mapped("listing the objects"):
            for folder in sorted(filter(_FOLDER.fullmatch, os.listdir(self._directory))):
                descriptor = open_directory(folder, self._directory)
                try:
                    for file in sorted(filter(_FILE.fullmatch, os.listdir(descriptor))):
                        status = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
                        yield folder + file.removesuffix(ENDING), status.st_size
                finally:
                    os.close(descriptor)

    def _compressor(self) -> ZstdCompressor:
        own: ZstdCompressor | None = getattr(self._own, "compressor", None)
        if own is None:
            from zstandard import ZstdCompressor  # noqa: PLC0415 - an extra

            own = self._own.compressor = ZstdCompressor(level=LEVEL)
        return own

    def _decompressor(self) -> ZstdDecompressor:
        own: ZstdDecompressor | None = getattr(self._own, "decompressor", None)
        if own is None:
            from zstandard import ZstdDecompressor  # noqa: PLC0415 - an extra

            own = self._own.decompressor = ZstdDecompressor()
        return own


def path_of(name: str) -> str:
    """Where an object is, below the directory of objects."""
    return f"{name[:2]}/{name[2:]}{ENDING}"


def need_zstandard() -> None:
    """Refuse to begin without the library that compresses."""
    try:
        import zstandard  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SettingsError(
            "the archive needs zstandard", hint="pip install 'everlog[archive]'"
        ) from error
