"""The legacy JSON store: files of one JSON document per session, read and written in place.

Used when they could not be migrated to a native store: the disk is full, or a part of the directory
is not writable. Sessions are held in RAM; every append writes a new file and renames it over the
old one before it is acknowledged. The files hold live messages and a summary, nothing else: titles,
events and deleted messages are lost when the process ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import cast

from everlog.errors import FormatError, StoreFailedError, StoreFullError
from everlog.ids import timestamp, ulid_at
from everlog.interop.formats.picoclaw.messages import Document, NotASessionError, write_document
from everlog.interop.legacy_import import migrate, read_file
from everlog.log.fold import MetadataFold, apply_changes, fold
from everlog.model import AnyRecord, Metadata
from everlog.ports import Reporting, Store
from everlog.settings import Settings
from everlog.stores.file import disk
from everlog.stores.in_memory import InMemoryStore
from everlog.stores.rules import AppendCall, blank_metadata, prepare_records

_UNSAFE = str.maketrans(":/\\", "___")


class LegacyStore(InMemoryStore, Reporting):
    """The store port on a directory of legacy files."""

    def __init__(self, directory: Path, documents: Mapping[Path, Document], settings: Settings | None = None) -> None:
        super().__init__(settings)
        self._directory = directory
        self._files: dict[str, Path] = {}
        for file, document in documents.items():
            self._load(file, document)

    def _load(self, file: Path, document: Document) -> None:
        # Deterministic, so that the id names the same session whenever the file is opened.
        digest = sha256(document.key.encode("utf-8", "replace")).digest()
        session = ulid_at(document.created_ms, digest)
        fields = {"key": document.key, "generations": {document.key: 1}, "chat": 1}
        super()._add(apply_changes(blank_metadata(session), fields))
        self._files[session] = file
        if document.records:
            super()._append(session, AppendCall(prepare_records(document.records, self._now, self._new_uuid)))

    def _add(self, metadata: Metadata) -> None:
        super()._add(metadata)
        self._files[metadata.id] = self._free_file(metadata.key or metadata.id)
        self._write_file(metadata.id, ())

    def _append(self, session: str, call: AppendCall) -> list[AnyRecord]:
        """Append records. Their file is durable on return."""
        with self._lock:
            log = self._log(session)
            before = list(log.records), list(log.counts), list(log.sizes), dict(log.ids)
            metadata, marker = log.metadata, log.last_marker
            stored = super()._append(session, call)
            try:
                self._write_file(session, stored)
            except BaseException:
                log.records, log.counts, log.sizes, log.ids = before
                log.fold, log.last_marker = MetadataFold(metadata), marker
                raise
            return stored

    def delete(self, session: str) -> int:
        """Delete a session and its file."""
        with self._lock:
            parts = super().delete(session)
            with disk.map_errors(f"deleting session {session}", session=session):
                self._files.pop(session).unlink(missing_ok=True)
            return parts

    def _free_file(self, name: str) -> Path:
        """Return an unused file name: `a/b` and `a_b` would have the same."""
        stem = name.translate(_UNSAFE)[:100]
        file = self._directory / f"{stem}.json"
        number = 1
        while os.path.lexists(file):
            number += 1
            file = self._directory / f"{stem}-{number}.json"
        return file

    def _write_file(self, session: str, new_records: Sequence[AnyRecord]) -> None:
        metadata = self.metadata(session)
        view = fold(self.read(session))
        compaction = view.compaction
        messages = view.messages
        if compaction is not None:
            first = compaction.first_kept_seq
            messages = tuple(message for message in messages if message.seq >= first)
        updated = max((record.timestamp for record in new_records if record.timestamp), default="")
        data = write_document(
            metadata.key or metadata.id,
            messages,
            "" if compaction is None else compaction.summary,
            metadata.created_at,
            updated or metadata.last_message_at or timestamp(0),
        )
        _replace_file(self._files[session], data)


def _replace_file(file: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with disk.map_errors(f"writing {file.name}"), disk.OpenDescriptor(os.open(file.parent, flags)) as folder:
        disk.replace_small_file(file.name, data, folder, durable=True)


def adopt_files(port: Store, files: Sequence[Path], settings: Settings) -> Store:
    """Import legacy files into a store; if it cannot be written, return a store on those files."""
    documents = {}
    reporting = port.capability(Reporting)
    reports: list[str] = [] if reporting is None else cast("list[str]", reporting.reports)
    for file in files:
        try:
            document = read_file(file)
            if document.is_certain:  # what only looks like one is left alone
                documents[file] = document
        except NotASessionError:
            continue
        except (FormatError, OSError) as error:
            reports.append(f"{file.name} was not imported: {error}")
    try:
        for result in migrate(port, list(documents)):
            if result.problem:
                reports.append(f"{Path(result.path).name} was not imported: {result.problem}")
        return port
    except (StoreFullError, StoreFailedError) as error:
        port.close()
        remaining = {file: document for file, document in documents.items() if file.exists()}
        legacy = LegacyStore(files[0].parent, remaining, settings)
        legacy.reports.append(f"old files are used in place: {error.message}")
        return legacy
