"""Old files of one JSON document per session, read and written where they lie.

For the run in which they could not be brought into a store of ours: the disk is full, or the
directory cannot be written in part. Sessions are held in memory; every append writes its file
anew, beside the old one, and renames it, before it is acknowledged. The files hold live messages
and a summary, nothing else: titles, events and what was deleted are gone when the run ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from everlog.ids import made_at, timestamp
from everlog.interop.formats.picoclaw.messages import Document, write_document
from everlog.log.fold import Tally, apply, fold
from everlog.model import AnyRecord, Metadata
from everlog.ports import Lease
from everlog.settings import Settings
from everlog.stores.file import disk
from everlog.stores.in_memory import InMemoryStore

_UNSAFE = str.maketrans(":/\\", "___")


class LegacyStore(InMemoryStore):
    """The store port on a directory of old files."""

    def __init__(
        self,
        directory: Path,
        documents: Mapping[Path, Document],
        settings: Settings | None = None,
    ) -> None:
        super().__init__(settings)
        self._directory = directory
        self._files: dict[str, Path] = {}
        self.reports: list[str] = []
        for file, document in documents.items():
            self._load(file, document)

    def _load(self, file: Path, document: Document) -> None:
        # The same id whenever the file is opened, so that it can be used as a name.
        digest = sha256(document.key.encode("utf-8", "replace")).digest()
        session = made_at(document.created, digest)
        blank = Tally.fresh(session).metadata(1, 0)
        facts = {"key": document.key, "generations": {document.key: 1}, "chat": 1}
        self._create(apply(blank, facts), {})
        self._files[session] = file
        if document.records:
            super().append(session, document.records)

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session, and its file."""
        with self._lock:
            known = set(self._logs)
            made = super().create(facts, unless_held=unless_held, at=at)
            if made.id not in known:
                self._files[made.id] = self._free_file(made.key or made.id)
                self._keep(made.id, ())
            return made

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records: the file is on the disk before they are."""
        with self._lock:
            log = self._log(session)
            before = list(log.records), list(log.counts), list(log.sizes), dict(log.ids)
            metadata, marker = log.metadata, log.marker
            stored = super().append(
                session,
                records,
                expected_seq=expected_seq,
                no_marker_after=no_marker_after,
                lease=lease,
            )
            try:
                self._keep(session, stored)
            except BaseException:
                log.records, log.counts, log.sizes, log.ids = before
                log.tally, log.marker = Tally(metadata), marker
                raise
            return stored

    def delete(self, session: str) -> int:
        """Remove a session and its file."""
        with self._lock:
            parts = super().delete(session)
            with disk.errors_mapped(f"deleting session {session}", session=session):
                self._files.pop(session).unlink(missing_ok=True)
            return parts

    def _free_file(self, name: str) -> Path:
        """A file of its own: `a/b` and `a_b` would have the same."""
        stem = name.translate(_UNSAFE)[:100]
        file = self._directory / f"{stem}.json"
        number = 1
        while os.path.lexists(file):
            number += 1
            file = self._directory / f"{stem}-{number}.json"
        return file

    def _keep(self, session: str, stored: Sequence[AnyRecord]) -> None:
        metadata = self.metadata(session)
        view = fold(self.read(session))
        summary = view.compaction
        kept = view.messages
        if summary is not None:
            kept = tuple(one for one in kept if one.seq >= summary.first_kept_seq)
        updated = max((one.timestamp for one in stored if one.timestamp), default="")
        data = write_document(
            metadata.key or metadata.id,
            kept,
            "" if summary is None else summary.summary,
            metadata.created_at,
            updated or metadata.last_message_at or timestamp(0),
        )
        _replace(self._files[session], data)


def _replace(file: Path, data: bytes) -> None:
    """Write a file beside the old one, sync it, and put it in its place."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with disk.errors_mapped(f"writing {file.name}"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(beside, flags, 0o600), "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(beside, file)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
