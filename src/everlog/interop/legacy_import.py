"""Bring old files of one JSON document per session into a store.

Each file is renamed to `x.json.migrated` only when its session is on the disk and was read back
equal. A file that cannot be read is left and reported. Records have ids that follow from the
file's content, so that a run that was cut short is taken up where it stopped, and a second run
changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
from msgspec.structs import replace

from everlog.errors import (
    ConflictError,
    EverlogError,
    FormatError,
    StoreFailedError,
    StoreFullError,
)
from everlog.interop.formats.picoclaw.messages import Document, read_document
from everlog.log.line_codec import same
from everlog.model import AnyRecord, Damaged
from everlog.ports import Store

DONE = ".migrated"
BATCH = 500


class Migrated(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of one file."""

    path: str
    id: str | None = None
    records_in: int = msgspec.field(default_factory=lambda: 0)
    records_out: int = msgspec.field(default_factory=lambda: 0)
    lost: tuple[str, ...] = msgspec.field(default_factory=lambda: ())
    problem: str = ""  # why it was left


def migrate(
    port: Store,
    files: Sequence[Path],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Migrated]:
    """Import files. StoreFullError and StoreFailedError end the run: the rest stays as it is."""
    done = []
    for number, file in enumerate(files, 1):
        try:
            done.append(_migrate(port, file))
        except (StoreFullError, StoreFailedError):
            raise
        except EverlogError as error:
            done.append(Migrated(str(file), problem=str(error)))
        except OSError as error:
            done.append(Migrated(str(file), problem=f"{error.strerror or error}"))
        if progress is not None:
            progress(number, len(files))
    return done


def read_file(file: Path) -> Document:
    """An old file; FormatError if it is none."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
        written = int(os.fstat(opened.fileno()).st_mtime * 1000)
        return read_document(opened.read(), file.name.removesuffix(".json"), written)


def _migrate(port: Store, file: Path) -> Migrated:
    document = read_file(file)
    target = file.with_name(file.name + DONE)
    if os.path.lexists(target):
        raise FormatError(f"{target.name} is there already", hint="look at both and remove one")
    wanted = [
        replace(record, id=str(uuid5(NAMESPACE_OID, f"{document.key} {place}")))
        for place, record in enumerate(document.records)
    ]
    session = _session(port, document)
    there = [one for one in port.read(session) if one.seq]
    if not _begins(there, wanted):
        raise ConflictError(
            f"the name {document.key[:60]!r} belongs to session {session}, which is another one",
            hint="rename that session or the key in the file",
        )
    head = port.metadata(session).through.seq
    for start in range(len(there), len(wanted), BATCH):
        head = port.append(session, wanted[start : start + BATCH], expected_seq=head)[-1].seq
    stored = [one for one in port.read(session) if one.seq]
    if len(stored) < len(wanted) or not _begins(stored, wanted) or port.verify(session):
        raise StoreFailedError(f"session {session} does not read back as it was written")
    os.rename(file, target)
    _sync(file.parent)
    return Migrated(str(file), session, len(wanted), len(wanted))


def _session(port: Store, document: Document) -> str:
    """The session with the file's key, made as of the file's time if there is none."""
    facts: dict[str, Any] = {"key": document.key}
    parts = document.key.split(":")
    if parts[0] == "agent" and len(parts) > 2:
        facts["agent"] = parts[1]
        if "direct" in parts[2:-1]:
            facts["sender"] = parts[-1]
    return port.create(facts, unless_held=True, at=document.created).id


def _begins(there: Sequence[Any], wanted: Sequence[AnyRecord]) -> bool:
    """Whether a log holds the first of these records, or all of them, and before anything else."""
    return all(
        not isinstance(one, Damaged) and one.id == other.id and same(other, one)
        for one, other in zip(there, wanted, strict=False)
    )


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
