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
from typing import Any

from everlog.ids import timestamp, ulid_at
from everlog.interop.formats.picoclaw.messages import Document, write_document
from everlog.log.fold import MetadataFold, apply_changes, fold
from everlog.model import AnyRecord, Metadata
from everlog.ports import Lease
from everlog.settings import Settings
from everlog.stores.file import disk
from everlog.stores.in_memory import InMemoryStore

_UNSAFE = str.maketrans(":/\\", "___")


class LegacyStore(InMemoryStore):
    """The store port on a directory of legacy files."""

    def __init__(self, directory: Path, documents: Mapping[Path, Document], settings: Settings | None = None) -> None:
        super().__init__(settings)
        self._directory = directory
        self._files: dict[str, Path] = {}
        self.reports: list[str] = []
        for file, document in documents.items():
            self._load(file, document)

    def _load(self, file: Path, document: Document) -> None:
        # Deterministic, so that the id names the same session whenever the file is opened.
        digest = sha256(document.key.encode("utf-8", "replace")).digest()
        session = ulid_at(document.created_ms, digest)
        empty = MetadataFold.empty(session).metadata(1, 0)
        fields = {"key": document.key, "generations": {document.key: 1}, "chat": 1}
        self._create(apply_changes(empty, fields), {})
        self._files[session] = file
        if document.records:
            super().append(session, document.records)

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session and its file."""
        with self._lock:
            existing = set(self._logs)
            metadata = super().create(facts, unless_held=unless_held, at=at)
            if metadata.id not in existing:
                self._files[metadata.id] = self._free_file(metadata.key or metadata.id)
                self._write_file(metadata.id, ())
            return metadata

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Append records. Their file is durable on return."""
        with self._lock:
            log = self._log(session)
            before = list(log.records), list(log.counts), list(log.sizes), dict(log.ids)
            metadata, marker = log.metadata, log.last_marker
            stored = super().append(
                session, records, expected_seq=expected_seq, no_marker_after=no_marker_after, lease=lease
            )
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
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with disk.map_errors(f"writing {file.name}"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600), "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
