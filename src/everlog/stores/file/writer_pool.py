"""The sessions that a process appends to: their writers, opened when needed, given up in time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from everlog.errors import EverlogError
from everlog.log.append_rules import Prepared
from everlog.model import AnyRecord, Metadata
from everlog.settings import SessionSettings
from everlog.stores.file.catalogue import Catalogue
from everlog.stores.file.layout import Root
from everlog.stores.file.log_tail import Report
from everlog.stores.file.log_writer import Gone, Writer

T = TypeVar("T")

OPEN_SESSIONS = 64  # so many keep their descriptors
SAVE_SECONDS = 1.0  # while appends come, metadata.json lags behind by no more than this


class Writers:
    """One writer for each session that was appended to lately, shared by all threads."""

    def __init__(
        self, root: Root, settings: SessionSettings, catalogue: Catalogue, report: Report
    ) -> None:
        self._root = root
        self._settings = settings
        self._catalogue = catalogue
        self._report = report
        self._mutex = threading.Lock()
        self._open: dict[str, Writer] = {}  # changed under the mutex

    def append(
        self,
        session: str,
        prepared: Sequence[Prepared],
        expected_seq: int | None,
        no_marker_after: int | None,
    ) -> list[AnyRecord]:
        """Append under the session's lock: `locked`, spelled out, since every call is paid."""
        while True:
            writer = self._open.get(session) or self._new(session)
            if not writer.acquire():
                continue
            try:
                return writer.append(prepared, expected_seq, no_marker_after)
            except Gone:
                self.forget(writer)
            finally:
                writer.release()
                writer.used_at = now = time.monotonic()
                if writer.due or now - writer.saved_at >= SAVE_SECONDS:
                    self._save(writer)

    def locked(self, session: str, work: Callable[[Writer], T]) -> T:
        """Do something under a session's lock; one that was deleted meanwhile is not found."""
        while True:
            writer = self._open.get(session) or self._new(session)
            if not writer.acquire():
                continue
            try:
                return work(writer)
            except Gone:
                self.forget(writer)
            finally:
                writer.release()
                if writer.due:
                    self._save(writer)

    @contextmanager
    def private(self, session: str, report: Report, staged: int | None = None) -> Iterator[Writer]:
        """A locked writer of its own, for work that is no append of the session's users.

        `staged` is the directory of a session that is still being made.
        """
        if staged is None:
            writer = self._writer(session, self._root.open_session(session), report)
        else:
            writer = Writer(session, staged, self._settings, report, lambda _: True)
        try:
            writer.acquire()
            yield writer
            writer.release()
        finally:
            writer.close()

    def current(self, session: str) -> Metadata | None:
        """The metadata of a session that is open here and that nobody else wrote to."""
        writer = self._open.get(session)
        return None if writer is None else writer.current()

    def forget(self, writer: Writer) -> None:
        """Give up the writer of a session that is gone."""
        with self._mutex:
            if self._open.get(writer.session) is writer:
                del self._open[writer.session]
        writer.close()

    def close(self) -> None:
        """Save what is derived and give all descriptors back."""
        with self._mutex:
            writers = list(self._open.values())
            self._open.clear()
        for writer in writers:
            self._save(writer, last=True)

    def after_fork_in_child(self) -> None:
        """Nothing that is open may be shared with the parent, locks least of all."""
        self._mutex = threading.Lock()
        writers, self._open = self._open, {}
        for writer in writers.values():
            writer.abandon()

    def _new(self, session: str) -> Writer:
        directory = self._root.open_session(session)
        try:
            self._root.settle_session(directory)
        except BaseException:
            os.close(directory)
            raise
        writer = self._writer(session, directory, self._report)
        self._catalogue.mark(session)
        retired = []
        with self._mutex:
            if session in self._open:  # another thread was first
                retired.append(writer)
            else:
                self._open[session] = writer
            while len(self._open) > OPEN_SESSIONS:
                oldest = min(self._open.values(), key=lambda one: one.used_at)
                retired.append(self._open.pop(oldest.session))
            writer = self._open.get(session, writer)
        for one in retired:
            self._save(one, last=True)
        return writer

    def _writer(self, session: str, directory: int, report: Report) -> Writer:
        def is_here(opened: int) -> bool:
            return self._root.is_here(session, opened)

        return Writer(session, directory, self._settings, report, is_here)

    def _save(self, writer: Writer, *, last: bool = False) -> None:
        """Bring metadata.json and the row up to date; a failure is only a lag."""
        if not writer.hold():
            return  # an append has been stuck for seconds: nothing to close or save under it
        try:
            if writer.loaded:
                self._catalogue.written(writer.save(), last=last)
        except EverlogError as error:
            writer.due = False
            self._report(f"metadata of session {writer.session}: {error.message}")
        finally:
            if last:
                writer.close()
            writer.let_go()
