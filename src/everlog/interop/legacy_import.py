"""Importing legacy files, one JSON document per session, into a store.

A file is renamed to `x.json.migrated` only after its session is durable and was read back equal. A
file that cannot be read is left alone and reported. Record ids are derived from the file's content,
so that an interrupted run continues where it stopped, and a second run changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
from msgspec.structs import replace

from everlog.errors import ConflictError, EverlogError, FormatError, StoreFailedError, StoreFullError
from everlog.interop.formats.format_types import ForeignSession, Item, Summary, derive_id
from everlog.interop.formats.picoclaw.messages import Document, NotASessionError, read_document
from everlog.log.line_codec import is_same_record
from everlog.model import AnyRecord, Compaction, Damaged, Message
from everlog.ports import Store

MIGRATED_ENDING = ".migrated"
BATCH = 500


class MigrationResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of migrating one file."""

    path: str
    id: str | None = None
    records_in: int = msgspec.field(default_factory=lambda: 0)
    records_out: int = msgspec.field(default_factory=lambda: 0)
    lost: tuple[str, ...] = msgspec.field(default_factory=lambda: ())
    problem: str = ""  # why it was not migrated


def migrate(
    store: Store, files: Sequence[Path], *, progress: Callable[[int, int], None] | None = None
) -> list[MigrationResult]:
    """Migrate files. StoreFullError and StoreFailedError end the run; the rest stays as it is."""
    results = []
    for number, file in enumerate(files, 1):
        try:
            results.append(_migrate(store, file))
        except (StoreFullError, StoreFailedError):
            raise
        except EverlogError as error:
            results.append(MigrationResult(str(file), problem=str(error)))
        except OSError as error:
            results.append(MigrationResult(str(file), problem=f"{error.strerror or error}"))
        if progress is not None:
            progress(number, len(files))
    return results


def read_file(file: Path) -> Document:
    """Read a legacy file; FormatError if it is not one."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        modified_ms = int(os.fstat(stream.fileno()).st_mtime * 1000)
        return read_document(stream.read(), file.name.removesuffix(".json"), modified_ms)


def read_legacy_session(file: Path) -> ForeignSession | None:
    """Read a legacy file as a session of PicoClaw, whose format it was; None if it is none for certain."""
    try:
        document = read_file(file)
    except NotASessionError:
        return None
    if not document.is_certain:
        return None
    key, stem = document.key, file.name.removesuffix(".json")
    items: list[Item] = []
    for index, record in enumerate(document.records):
        record_id = derive_id(key, index)
        if isinstance(record, Compaction):
            # It stands for what was said before the messages in the file.
            summary = Summary(id=record_id, text=record.summary, first_kept=derive_id(key, index + 1), strategy="prose")
            items.append(replace(summary, timestamp=record.timestamp))
        elif isinstance(record, Message):
            items.append(replace(record, id=record_id))
    metadata = _session_fields(document)
    return ForeignSession(session_id=stem, metadata=metadata, created_ms=document.created_ms, items=tuple(items))


def _migrate(store: Store, file: Path) -> MigrationResult:
    document = read_file(file)
    target = file.with_name(file.name + MIGRATED_ENDING)
    if os.path.lexists(target):
        raise FormatError(f"{target.name} already exists", hint="compare both files and remove one")
    expected = [
        replace(record, id=str(uuid5(NAMESPACE_OID, f"{document.key} {index}")))
        for index, record in enumerate(document.records)
    ]
    session = _find_or_create(store, document)
    existing = [entry for entry in store.read(session) if entry.seq]
    if not _is_prefix(existing, expected):
        raise ConflictError(
            f"the name {document.key[:60]!r} belongs to another session, {session}",
            hint="rename that session or the key in the file",
        )
    last_seq = store.metadata(session).through.seq
    for start in range(len(existing), len(expected), BATCH):
        batch = expected[start : start + BATCH]
        last_seq = store.append(session, batch, expected_seq=last_seq)[-1].seq
    stored = [entry for entry in store.read(session) if entry.seq]
    if len(stored) < len(expected) or not _is_prefix(stored, expected) or store.verify(session):
        raise StoreFailedError(f"session {session} does not read back as it was written")
    os.rename(file, target)
    _sync_directory(file.parent)
    return MigrationResult(str(file), session, len(expected), len(expected))


def _find_or_create(store: Store, document: Document) -> str:
    """Return the session with the file's key; create it with the file's time if there is none."""
    return store.create(_session_fields(document), unless_held=True, at=document.created_ms).id


def _session_fields(document: Document) -> dict[str, Any]:
    """Return the key of a session, with the agent and the sender that it names."""
    metadata: dict[str, Any] = {"key": document.key}
    parts = document.key.split(":")
    if parts[0] == "agent" and len(parts) > 2:
        metadata["agent"] = parts[1]
        if "direct" in parts[2:-1]:
            metadata["sender"] = parts[-1]
    return metadata


def _is_prefix(entries: Sequence[Any], expected: Sequence[AnyRecord]) -> bool:
    """Return whether a log begins with these records, or has only the first of them."""
    return all(
        not isinstance(entry, Damaged) and entry.id == record.id and is_same_record(record, entry)
        for entry, record in zip(entries, expected, strict=False)
    )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
