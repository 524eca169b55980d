"""The pool of writers of the sessions that a process appends to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from everlog.errors import EverlogError
from everlog.model import AnyRecord, Metadata
from everlog.settings import SessionSettings
from everlog.stores.file.catalogue import Catalogue
from everlog.stores.file.layout import Root
from everlog.stores.file.log_tail import Report
from everlog.stores.file.log_writer import LogWriter, SessionDeletedError
from everlog.stores.rules import AppendCall

T = TypeVar("T")

MAX_OPEN_WRITERS = 64  # the least recently used one is closed
SAVE_SECONDS = 1.0  # during appends metadata.json lags behind by no more than this


class WriterPool:
    """One writer for each recently used session, shared by all threads."""

    def __init__(self, root: Root, settings: SessionSettings, catalogue: Catalogue, report: Report) -> None:
        self._root = root
        self._settings = settings
        self._catalogue = catalogue
        self._report = report
        self._mutex = threading.Lock()
        self._open: dict[str, LogWriter] = {}  # changed under the mutex

    def append(self, session: str, call: AppendCall) -> list[AnyRecord]:
        """Append under the session's lock; `run_locked` inlined, since this is the hot path."""
        while True:
            writer = self._open.get(session) or self._open_writer(session)
            if not writer.acquire():
                continue
            try:
                return writer.append(call)
            except SessionDeletedError:
                self.forget(writer)
            finally:
                writer.release()
                writer.used_at = now = time.monotonic()
                if writer.save_due or now - writer.saved_at >= SAVE_SECONDS:
                    self._save(writer)

    def run_locked(self, session: str, work: Callable[[LogWriter], T]) -> T:
        """Run `work` under a session's lock; NotFoundError if it was deleted meanwhile."""
        while True:
            writer = self._open.get(session) or self._open_writer(session)
            if not writer.acquire():
                continue
            try:
                return work(writer)
            except SessionDeletedError:
                self.forget(writer)
            finally:
                writer.release()
                if writer.save_due:
                    self._save(writer)

    @contextmanager
    def private_writer(self, session: str, report: Report, staged_directory: int | None = None) -> Iterator[LogWriter]:
        """Yield a locked writer outside the pool, for work other than appends.

        `staged_directory` is the directory of a session that is still being created.
        """
        if staged_directory is None:
            writer = self._make_writer(session, self._root.open_session(session), report)
        else:
            writer = LogWriter(session, staged_directory, self._settings, report, lambda _: True)
        try:
            writer.acquire()
            yield writer
            writer.release()
        finally:
            writer.close()

    def current_metadata(self, session: str) -> Metadata | None:
        """Return the metadata of a session that is open here and unchanged by others, or None."""
        writer = self._open.get(session)
        return None if writer is None else writer.current_metadata()

    def forget(self, writer: LogWriter) -> None:
        """Close the writer of a deleted session."""
        with self._mutex:
            if self._open.get(writer.session) is writer:
                del self._open[writer.session]
        writer.close()

    def close(self) -> None:
        """Save derived data and close all writers."""
        with self._mutex:
            writers = list(self._open.values())
            self._open.clear()
        for writer in writers:
            self._save(writer, last=True)

    def after_fork_in_child(self) -> None:
        """Close everything: descriptors and locks must not be shared with the parent."""
        self._mutex = threading.Lock()
        writers, self._open = self._open, {}
        for writer in writers.values():
            writer.abandon()

    def _open_writer(self, session: str) -> LogWriter:
        directory = self._root.open_session(session)
        try:
            self._root.sync_session(directory)
        except BaseException:
            os.close(directory)
            raise
        writer = self._make_writer(session, directory, self._report)
        self._catalogue.mark(session)
        retired = []
        with self._mutex:
            if session in self._open:  # another thread was first
                retired.append(writer)
            else:
                self._open[session] = writer
            while len(self._open) > MAX_OPEN_WRITERS:
                oldest = min(self._open.values(), key=lambda candidate: candidate.used_at)
                retired.append(self._open.pop(oldest.session))
            writer = self._open.get(session, writer)
        for retired_writer in retired:
            self._save(retired_writer, last=True)
        return writer

    def _make_writer(self, session: str, directory: int, report: Report) -> LogWriter:
        def is_current(opened: int) -> bool:
            return self._root.is_session_directory(session, opened)

        return LogWriter(session, directory, self._settings, report, is_current)

    def _save(self, writer: LogWriter, *, last: bool = False) -> None:
        """Update metadata.json and the index row; a failure only delays them."""
        if not writer.lock_threads():
            return  # an append has been stuck for seconds: do not close or save under it
        try:
            if writer.is_loaded:
                self._catalogue.record_write(writer.save(), last=last)
        except EverlogError as error:
            writer.save_due = False
            self._report(f"metadata of session {writer.session}: {error.message}")
        finally:
            if last:
                writer.close()
            writer.unlock_threads()
