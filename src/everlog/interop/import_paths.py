"""The one way in: import whatever is at some paths.

    files and folders of other programs    each file by the format that recognises it
    legacy JSON, one document a session    as sessions of PicoClaw, whose format it was
    sessions of our own layout             byte for byte, under their own id: of a home, of a program with
                                           this layout, or exported as native or json
    an archive                             its newest files, read from a copy that is removed afterwards

The source is never changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError
from everlog.interop import native_files
from everlog.interop.archive import archive_folder
from everlog.interop.archive.archive_listing import list_archive
from everlog.interop.archive.restore import restore
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.ulid.configuration import Equivalent, read_compaction
from everlog.interop.import_result import ImportResult
from everlog.interop.importer import import_files
from everlog.interop.native_import import import_native
from everlog.interop.transcript_sources import find_files
from everlog.ports import Progress, SkippedFile, Store

_CONFIGURATION = "config.yaml"  # beside the sessions of a program with our layout


class ImportReport(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of an import."""

    files: tuple[ImportResult, ...] = msgspec.field(default_factory=lambda: ())
    skipped: tuple[SkippedFile, ...] = ()  # that nobody would take for a session
    settings: tuple[Equivalent, ...] = ()  # of the program whose sessions they were


def import_paths(
    store: Store,
    paths: Sequence[Path],
    formats: Sequence[ForeignFormat],
    *,
    native: bool = True,
    progress: Progress | None = None,
) -> ImportReport:
    """Import all sessions at these paths; without `native`, only those of the formats."""
    with ExitStack() as stack:
        results: list[ImportResult] = []
        skipped: list[SkippedFile] = []
        settings: dict[Equivalent, None] = {}
        for path in paths:
            folders, origin = _open(path, stack)
            files, left_out = find_files(folders, formats)
            logs: list[Path] = []
            if native:
                logs, files, left_out = native_files.find_logs(files, left_out)
            results += _import_native(store, logs, origin)
            documents = [file for file in files if native and file.suffix == ".json" and native_files.is_export(file)]
            results += _import_native(store, documents, origin)
            others = [file for file in files if file not in documents]
            results += import_files(store, others, formats, progress=progress, origin=origin)
            skipped += (replace(file, path=str(origin(Path(file.path)))) for file in left_out)
            if logs:
                settings |= dict.fromkeys(_read_configuration(path))
        return ImportReport(tuple(results), tuple(skipped), tuple(settings))


def _open(path: Path, stack: ExitStack) -> tuple[Sequence[Path], Callable[[Path], Path]]:
    """Return where to look, and a function that returns where a file found there really is."""
    if (path / "index.db").is_file() and (path / "sessions").is_dir():  # a home: the rest of it is no session
        return [path / "sessions"], Path
    if path.name != archive_folder.NAME or not (path / "manifests").is_dir():
        return [path], Path
    root, copy = (
        path.absolute().parent,
        Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everlog-import-"))),
    )
    restore(root, copy)
    sources = (copy / source.path.lstrip("/") for source in list_archive(root, limit=0).sources)
    return [source for source in sources if source.exists()], lambda file: Path("/") / file.relative_to(copy)


def _import_native(store: Store, files: Sequence[Path], origin: Callable[[Path], Path]) -> Iterator[ImportResult]:
    for file in files:
        try:
            yield replace(import_native(store, native_files.read(file)), path=str(origin(file)))
        except EverlogError as error:
            yield ImportResult(path=str(origin(file)), problem=str(error))
        except OSError as error:
            yield ImportResult(path=str(origin(file)), problem=error.strerror or str(error))


def _read_configuration(path: Path) -> Sequence[Equivalent]:
    """Return the settings of the program beside its sessions that everlog has an equivalent of."""
    above = path.absolute()
    for folder in (above, *above.parents[:3]):
        try:
            return read_compaction((folder / _CONFIGURATION).read_text("utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    return ()
