"""Objects: at most 4 MB of bytes each, stored once, under their own SHA-256.

`put` may be called from many threads. Its object is durable after the next `sync_names`, and only
then may a manifest name it. An object is a plain zstd frame: `zstd -d` reads it.
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
    map_errors,
    open_directory,
    open_file,
    read_small_file,
    sync,
    sync_directory,
    write_all,
)

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

BLOCK_BYTES = 4 << 20  # of a file; no object is larger
LEVEL = 3
ENDING = ".zst"
_FOLDER = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{62}\.zst")
_MAX_OBJECT_BYTES = BLOCK_BYTES + (BLOCK_BYTES >> 7) + 4096  # above the size of a frame of random bytes


class Objects:
    """The directory of objects."""

    def __init__(self, directory: int, tmp: int = -1, *, recheck: bool = False) -> None:
        self._directory = directory
        self._tmp = tmp
        self._recheck = recheck  # read existing objects, and replace damaged ones
        self._thread_local = threading.local()  # compressors are not thread-safe
        self._next_number = count().__next__
        self._count_lock = threading.Lock()
        self._unsynced_folders: set[str] = set()
        self.written = 0  # bytes, compressed

    def put(self, data: memoryview) -> str:
        """Store bytes unless they are stored already, and return their name."""
        name = sha256(data).hexdigest()
        # Also an existing object: the run that renamed it may have been killed before it synced.
        self._unsynced_folders.add(name[:2])
        if not self._has(name, len(data)):
            packed = self._compressor().compress(data)
            self._write_object(name, packed)
            with self._count_lock:
                self.written += len(packed)
        return name

    def _has(self, name: str, size: int) -> bool:
        try:
            os.stat(object_path(name), dir_fd=self._directory, follow_symlinks=False)
            if self._recheck:
                self.get(name, size)
        except (FileNotFoundError, NotFoundError, LogDamagedError):
            return False
        return True

    def _write_object(self, name: str, packed: bytes) -> None:
        temporary = f"{os.getpid()}.{self._next_number()}"
        descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._tmp)
        try:
            try:
                write_all(descriptor, packed)
                sync(descriptor)
            finally:
                os.close(descriptor)
            with suppress(FileExistsError):
                os.mkdir(name[:2], 0o700, dir_fd=self._directory)
            os.rename(temporary, object_path(name), src_dir_fd=self._tmp, dst_dir_fd=self._directory)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._tmp)
            raise

    def sync_names(self) -> None:
        """Make the names of all objects that were put so far durable."""
        folders, self._unsynced_folders = self._unsynced_folders, set()
        for folder in sorted(folders):
            descriptor = open_directory(folder, self._directory)
            try:
                sync_directory(descriptor)
            finally:
                os.close(descriptor)
        if folders:
            sync_directory(self._directory)

    def get(self, name: str, size: int | None = None) -> bytes:
        """Return the bytes of an object; LogDamagedError if its SHA-256 or its size is wrong."""
        from zstandard import ZstdError, get_frame_parameters  # noqa: PLC0415 - an extra

        decompressor = self._decompressor()
        with map_errors(f"reading object {name}"):
            packed = read_small_file(object_path(name), self._directory, _MAX_OBJECT_BYTES)
        try:
            # Checked first: a damaged object must not make us allocate gigabytes.
            if get_frame_parameters(packed).content_size > BLOCK_BYTES:
                raise LogDamagedError(f"object {name} is damaged: it is too large")
            data = decompressor.decompress(packed, max_output_size=BLOCK_BYTES)
        except ZstdError as error:
            raise LogDamagedError(f"object {name} is damaged: {error}") from error
        if sha256(data).hexdigest() != name:
            raise LogDamagedError(f"object {name} is damaged: its content does not match its name")
        if size is not None and len(data) != size:
            raise LogDamagedError(f"object {name} has {len(data)} bytes instead of {size}")
        return data

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield the names of all objects and their sizes on disk, in order."""
        with map_errors("listing the objects"):
            for folder in sorted(filter(_FOLDER.fullmatch, os.listdir(self._directory))):
                descriptor = open_directory(folder, self._directory)
                try:
                    for file in sorted(filter(_FILE.fullmatch, os.listdir(descriptor))):
                        status = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
                        yield folder + file.removesuffix(ENDING), status.st_size
                finally:
                    os.close(descriptor)

    def _compressor(self) -> ZstdCompressor:
        compressor: ZstdCompressor | None = getattr(self._thread_local, "compressor", None)
        if compressor is None:
            from zstandard import ZstdCompressor  # noqa: PLC0415 - an extra

            compressor = self._thread_local.compressor = ZstdCompressor(level=LEVEL)
        return compressor

    def _decompressor(self) -> ZstdDecompressor:
        decompressor: ZstdDecompressor | None = getattr(self._thread_local, "decompressor", None)
        if decompressor is None:
            from zstandard import ZstdDecompressor  # noqa: PLC0415 - an extra

            decompressor = self._thread_local.decompressor = ZstdDecompressor()
        return decompressor


def object_path(name: str) -> str:
    """Return the path of an object, relative to the directory of objects."""
    return f"{name[:2]}/{name[2:]}{ENDING}"


def require_zstandard() -> None:
    """Raise SettingsError if the compression library is not installed."""
    try:
        import zstandard  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SettingsError("the archive needs zstandard", hint="pip install 'everlog[archive]'") from error
