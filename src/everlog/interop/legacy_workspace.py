"""A directory of PicoClaw's with legacy sessions, one JSON document each, beside the newer files.

    reading    shows them as what they would become, from files in our home; nothing is converted
    writing    first converts them in place, as PicoClaw does when it starts: the document becomes a
               transcript with its metadata file, durably, then it is renamed to `x.json.migrated`
    fallback   if that cannot be written, the documents are used as they are until the next start

A crash in between leaves the document, and the next start finds the same lines and only renames it.
A document whose session has gone another way meanwhile stays where it is, and is reported.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from everlog.errors import ConflictError, EverlogError, FormatError, StoreFailedError, StoreFullError
from everlog.interop.foreign.foreign_files import ForeignFiles
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.formats.picoclaw import FORMAT
from everlog.interop.formats.picoclaw.legacy_document import MigratedSession, migrate_document
from everlog.interop.formats.picoclaw.messages import NotASessionError
from everlog.interop.joined_store import FurtherStore, JoinedStore
from everlog.interop.legacy_import import MIGRATED_ENDING, read_file
from everlog.interop.legacy_json import LegacyStore
from everlog.model import Metadata
from everlog.ports import Route, Routing, SessionAccess, SkippedFile, Store
from everlog.stores.file import disk
from everlog.stores.file.layout import legacy_files

T = TypeVar("T")
OpenFiles = Callable[[Path, Path], ForeignStore]  # a directory, and ours for what is derived from it


def legacy_documents(directory: Path) -> dict[Path, MigratedSession]:
    """Return the legacy sessions of a directory with the files that they become; damaged ones are left out."""
    return dict(_read_documents(directory, lambda _: None))


def _read_documents(directory: Path, report: Callable[[str], object]) -> Iterator[tuple[Path, MigratedSession]]:
    for file in legacy_files(directory):
        try:
            yield file, migrate_document(file.read_bytes(), file.stem, int(file.stat().st_mtime * 1000))
        except NotASessionError:
            continue
        except (FormatError, OSError) as error:
            report(f"{file.name} was not migrated: {error}")


class LegacyWorkspace(JoinedStore):
    """The store on the newer files, with the legacy sessions until the first write."""

    def __init__(self, main: ForeignStore, view: ForeignStore) -> None:
        super().__init__(main, [FurtherStore(view, main.root, is_writable=False)])
        self._store = main
        self._view = view
        self._preparation = threading.Lock()
        self._is_prepared = False

    def prepare(self) -> None:
        """Convert the legacy sessions in place, once; if that cannot be written, use them as they are."""
        with self._preparation:
            if self._is_prepared:
                return
            reports = self._store.reports
            try:
                with self._store.names_locked():
                    for file, session in _read_documents(self._store.root, reports.append):
                        _migrate(self._store, file, session)
            except (StoreFullError, StoreFailedError) as error:
                reports.append(f"old files are used in place: {error.message}")
                self._replace_further(_open_documents(self._store.root))
            else:
                self._replace_further(None)
            self._store.rescan()
            self._is_prepared = True

    def _replace_further(self, store: Store | None) -> None:
        self._further = () if store is None else (store,)
        self._foreign, self._read_only = {}, {}
        self._owners.clear()
        self._view.close()
        remove_view(self._view.root.parent)

    def capability(self, kind: type[T]) -> T | None:
        """Return what the joined store has; messages are routed once the legacy sessions are converted."""
        return cast("T", _PreparedRouting(self)) if kind is Routing else super().capability(kind)

    def skipped_files(self) -> Sequence[SkippedFile]:
        """Return the files of the directory that are no sessions, legacy or not."""
        documents = {file.name for file in legacy_documents(self._store.root)}
        return [file for file in self._store.skipped_files() if file.path not in documents]

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session, after the legacy ones were converted."""
        self.prepare()
        return super().create(facts, unless_held=unless_held, at=at)

    def access(self, session: str) -> SessionAccess:
        """Return what may be done with a session: a legacy one is converted before it is changed."""
        return replace(super().access(session), mode="own", can_copy=False)

    def _writable(self, session: str) -> Store:
        self.prepare()
        return super()._writable(session)

    def close(self) -> None:
        """Close the stores."""
        if not self._is_prepared:
            self._view.close()
            self._further = ()
        super().close()


class _PreparedRouting(Routing):
    """The routing of the directory, once its legacy sessions are converted."""

    def __init__(self, workspace: LegacyWorkspace) -> None:
        routing = workspace.main.capability(Routing)
        assert routing is not None
        self._workspace, self._routing = workspace, routing

    @property
    def dimensions(self) -> tuple[str, ...] | None:
        """The only dimensions that can separate sessions; None: any."""
        return self._routing.dimensions

    @property
    def default_agent(self) -> str:
        """The agent that the program itself uses."""
        return self._routing.default_agent

    def prepare(self) -> None:
        """Convert the legacy sessions."""
        self._workspace.prepare()

    def find_session(self, route: Route) -> str | None:
        """Return the session that a message goes to, or None."""
        self._workspace.prepare()
        return self._routing.find_session(route)

    def route_to_session(self, route: Route, fields: Mapping[str, Any], *, new_chat: bool = False) -> str:
        """Return the session that a message goes to, made if need be."""
        self._workspace.prepare()
        return self._routing.route_to_session(route, fields, new_chat=new_chat)


def join_documents(store: ForeignStore, view: Path, open_files: OpenFiles) -> Store:
    """Return a store with the legacy sessions beside it, if there are any; `view` is our directory for them."""
    documents = legacy_documents(store.root)
    if not documents:
        remove_view(view)
        return store
    try:
        write_view(view / "files", documents)
    except EverlogError as error:
        store.reports.append(f"old files are shown as they are: {error.message}")
        return JoinedStore(store, [FurtherStore(_open_documents(store.root), store.root, is_writable=False)])
    return LegacyWorkspace(store, open_files(view / "files", view))


def write_view(directory: Path, documents: Mapping[Path, MigratedSession]) -> None:
    """Write the files that documents become into a directory of ours, and nothing else."""
    contents = {f"{session.stem}{ending}": data for session in documents.values() for ending, data in _files(session)}
    with disk.map_errors(f"making {directory}"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in directory.iterdir():
            if file.name not in contents:
                file.unlink()
        for name, data in contents.items():
            file = directory / name
            if not file.exists() or file.read_bytes() != data:
                file.write_bytes(data)


def remove_view(directory: Path) -> None:
    """Remove the view: what was in its documents may be deleted elsewhere by now."""
    shutil.rmtree(directory, ignore_errors=True)


def _files(session: MigratedSession) -> Iterator[tuple[str, bytes]]:
    yield ".jsonl", _content(session)
    yield from session.edit.files.items()


def _content(session: MigratedSession) -> bytes:
    return b"".join(line + b"\n" for line in session.edit.lines)


def _migrate(store: ForeignStore, file: Path, session: MigratedSession) -> None:
    """Convert one document, or report why it stays."""
    target = file.with_name(file.name + MIGRATED_ENDING)
    try:
        if os.path.lexists(target):
            raise ConflictError(f"{target.name} already exists")
        files = ForeignFiles(store.root, "", session.stem, FORMAT, store.reports.append)
        transcript = store.root / f"{session.stem}.jsonl"
        if not os.path.lexists(transcript):
            files.create(session.edit)
        elif not transcript.read_bytes().startswith(_content(session)):
            raise ConflictError(f"session {session.key} has other messages by now")
        with disk.map_errors(f"renaming {file.name}"):
            os.rename(file, target)
            with disk.opened_directory(os.fspath(store.root)) as folder:
                disk.sync_directory(folder)
    except (StoreFullError, StoreFailedError):
        raise
    except (EverlogError, OSError) as error:
        store.reports.append(f"{file.name} was not migrated: {error}")


def _open_documents(directory: Path) -> Store:
    """Return the store on the documents themselves, as they were left."""
    return LegacyStore(directory, {file: read_file(file) for file in legacy_documents(directory)})
