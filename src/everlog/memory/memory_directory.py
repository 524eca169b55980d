"""A memory on disk: a directory of Markdown files that people edit and several processes share.

    MEMORY.md  extracted.md  NOTE.md …       what it is about; all of it may be edited by hand
    .lock                                    flock: whoever reads or writes through us holds it
    .written                                 digests of what we wrote: anything else is a person's
    .extraction_state.json                   how far each session was looked through
    .plan-staged  .plan  .history            see `changes.py`
    .consolidation_state.json  .consolidation_lock   see `dreaming.py`

Each file is replaced as a whole, a plan as a whole. A person needs no lock: a file that changed
since it was read is not overwritten, and a file that does not read as we wrote it is theirs.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import NamedTuple

import msgspec

from everlog.errors import ConflictError, InvalidIdError, NotFoundError
from everlog.memory import extracted_file, extraction, index_file, note_text, transaction
from everlog.memory.dream_plan import Plan
from everlog.memory.facts import Fact, fresh
from everlog.memory.note_files import MemoryFile, is_note
from everlog.memory.transaction import Entry, Swap
from everlog.stores.file import disk

LISTED = 200  # notes that a listing shows
LOCK_SECONDS = 5.0
_LOCK, _WRITTEN, _STATE = ".lock", ".written", ".extraction_state.json"
_DIGESTS = 20_000  # more are forgotten by half
_SESSIONS = 5_000  # states of sessions; older ones are forgotten
_DEPTH = 8
_DEBRIS = re.compile(r".+\.\d+\.tmp")
_ANY = object()


def memory_path(root: Path, *, agent: str = "", project: str = "") -> Path:
    """Where the memory of an agent or a project is; a name that is no name is refused."""
    given = project or agent
    if not re.fullmatch(r"[\w\-][\w\-.@+=]{0,199}", given) or (not project and agent == "projects"):
        raise InvalidIdError(f"{given[:80]!r} cannot be the name of a memory")
    return root / "memory" / "projects" / project if project else root / "memory" / agent


def project_key(directory: str) -> str:
    """The name of a project's memory: that of its directory, and a hash of the whole path.

    No two directories share one, as they do by the rules that only replace signs.
    """
    name = re.sub(r"[^\w\-]+", "-", directory.rstrip("/").rpartition("/")[2]).strip("-")[:80]
    digest = hashlib.sha256(os.fsencode(directory.rstrip("/") or "/")).hexdigest()[:12]
    return f"{name or 'root'}-{digest}"


class Undone(NamedTuple):
    """What an undo took back."""

    id: str
    paths: tuple[str, ...]
    report: str  # of what was taken back


class Memories:
    """One memory. Every method may be called from any thread and process at any time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Callable[[], float] = time.time,
        wait: float = LOCK_SECONDS,
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._wait = wait  # seconds for the lock, then SessionBusyError

    # --- reading

    def files(self) -> list[MemoryFile]:
        """All Markdown files, newest first."""
        if not self.path.is_dir():
            return []
        with self._open() as folder:
            ours = self._digests(folder)
            return sorted(_read(folder, ours), key=lambda one: (-one.modified, one.path))

    def listed(self, most: int = LISTED) -> list[MemoryFile]:
        """The notes, newest first."""
        return [one for one in self.files() if is_note(one.path)][:most]

    def read(self, path: str) -> str | None:
        """What a file says, or None."""
        if not self.path.is_dir():
            return None
        with self._open() as folder:
            found = transaction.current(folder, _checked(path))
        return None if found is None else _text(found)

    def shown(self) -> str:
        """The index within its limits, as a model is shown it."""
        return index_file.cut(self.read(note_text.INDEX) or "")

    # --- writing single files

    def put(
        self, path: str, text: str, *, by_person: bool = False, expected_text: object = _ANY
    ) -> None:
        """Write one file. `expect`: what it must say now, or None for no file; else ConflictError.

        What is written `by_person` counts as edited by hand: no dream rewrites it.
        """
        with self._open() as folder:
            found = transaction.current(folder, _checked(path))
            if expected_text is not _ANY and expected_text != (
                None if found is None else _text(found)
            ):
                raise ConflictError(f"{path} was changed by somebody else", hint="read it again")
            if not by_person:
                self._sign(folder, [_bytes(text)])
            transaction.place(folder, path, _bytes(text))

    def remove(self, path: str) -> None:
        """Take one file away; NotFoundError if there is none."""
        with self._open() as folder:
            if transaction.current(folder, _checked(path)) is None:
                raise NotFoundError(f"there is no {path} in this memory")
            transaction.place(folder, path, None)

    def clear(self) -> list[str]:
        """Take all Markdown files and their history away, nothing else; returns their paths."""
        if not self.path.is_dir():
            return []
        with self._open() as folder:
            gone = [one.path for one in _read(folder, frozenset())]
            for path in gone:
                transaction.place(folder, path, None)
            for name in (_WRITTEN, _STATE):
                transaction.place(folder, name, None)
            with suppress(FileNotFoundError):
                os.rename(
                    transaction.HISTORY, transaction.STAGED, src_dir_fd=folder, dst_dir_fd=folder
                )
            transaction.recover(folder)
            return sorted(gone)

    # --- extraction

    def extraction_state(self, session: str) -> extraction.State:
        """How far a session was looked through."""
        if not self.path.is_dir():
            return extraction.State()
        with self._open() as folder:
            return _states(folder).get(session, extraction.State())

    def known(self) -> list[str]:
        """The facts that notes and extracted lines state, for those who look for new ones."""
        return _known(self.files())

    def record(
        self, session: str, facts: Sequence[Fact], state: extraction.State, day: date
    ) -> list[Fact]:
        """Write down what was extracted and how far; returns the facts that were not known.

        The facts go first: after a crash in between they are found again and known.
        """
        with self._open() as folder:
            files = list(_read(folder, frozenset()))
            new = fresh(facts, _known(files))
            if new:
                text = next((one.text for one in files if one.path == extracted_file.FILE), "")
                transaction.place(
                    folder, extracted_file.FILE, _bytes(extracted_file.add(text, new, day))
                )
            states = _states(folder)
            states.pop(session, None)
            states[session] = state
            kept = dict(list(states.items())[-_SESSIONS:])
            disk.put(_STATE, msgspec.json.encode(kept), folder, durable=True)
            return new

    # --- plans

    def apply(self, plan: Plan, *, by_person: bool = False) -> str:
        """Make all changes of a plan or, if a file is not as it was read, none (ConflictError).

        Returns the id of its entry in the history; a plan without changes has none. What is
        written `by_person` counts as edited by hand.
        """
        if not plan.changes:
            return ""
        with self._open() as folder:
            swaps = [
                Swap(_checked(one.path), _maybe(one.before), _maybe(one.after))
                for one in plan.changes
            ]
            self._compare(folder, [(one.path, one.old) for one in swaps], "plan again")
            if not by_person:
                self._sign(folder, [one.new for one in swaps if one.new is not None])
            return transaction.commit(folder, swaps, self._clock(), plan.report())

    def history(self) -> list[Entry]:
        """The plans that were applied and taken back, oldest first."""
        if not self.path.is_dir():
            return []
        with self._open() as folder:
            return transaction.history(folder)

    def undo(self) -> Undone:
        """Take the last plan back; ConflictError, naming the files, if one was edited since."""
        with self._open() as folder:
            entries = transaction.history(folder)
            undone = {one.manifest.undoes for one in entries}
            last = next(
                (
                    one
                    for one in reversed(entries)
                    if not one.manifest.undoes and one.id not in undone
                ),
                None,
            )
            if last is None:
                raise NotFoundError("there is nothing to undo in this memory")
            swaps = [Swap(one.path, one.new, one.old) for one in transaction.swaps_of(folder, last)]
            hint = "undo that edit first, or change the files by hand"
            self._compare(folder, [(one.path, one.old) for one in swaps], hint)
            report = f"- took back {last.id}"
            transaction.commit(folder, swaps, self._clock(), report, undoes=last.id)
            return Undone(last.id, tuple(one.path for one in swaps), last.manifest.report)

    def _compare(self, folder: int, expected: list[tuple[str, bytes | None]], hint: str) -> None:
        edited = [
            path for path, content in expected if transaction.current(folder, path) != content
        ]
        if edited:
            raise ConflictError(
                f"edited since: {', '.join(edited)}; nothing was changed", hint=hint, paths=edited
            )

    # --- the directory

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The directory, locked, and without what a crash may have left."""
        with disk.errors_mapped(f"memory {self.path.name}"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = disk.open_directory(os.fspath(self.path))
            try:
                held = disk.open_file(_LOCK, os.O_RDWR | os.O_CREAT, folder)
                try:
                    disk.lock(held, self._wait, f"the memory {self.path.name}")
                    transaction.recover(folder)
                    yield folder
                finally:
                    os.close(held)
            finally:
                os.close(folder)

    def _digests(self, folder: int) -> frozenset[str]:
        try:
            return frozenset(disk.get(_WRITTEN, folder).decode("ascii", "replace").split())
        except FileNotFoundError:
            return frozenset()

    def _sign(self, folder: int, contents: Sequence[bytes]) -> None:
        """Note what is about to be written; a digest too many after a crash does no harm."""
        known = self._digests(folder)
        new = [one for one in map(_digest, contents) if one not in known]
        if not new:
            return
        rows = "".join(f"\n{one}" for one in new).encode()  # a torn line ends where this begins
        if len(known) + len(new) > _DIGESTS:
            kept = disk.get(_WRITTEN, folder).split()[-_DIGESTS // 2 :]
            disk.put(_WRITTEN, b"\n".join(kept) + rows, folder, durable=True)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        written = disk.open_file(_WRITTEN, flags, folder)
        try:
            disk.write_all(written, rows)
            disk.sync(written)
        finally:
            os.close(written)


def _read(
    folder: int, ours: frozenset[str], above: str = "", depth: int = 0
) -> Iterator[MemoryFile]:
    """The Markdown files below a directory; links and hidden names are passed over."""
    for name in os.listdir(folder):
        if name.startswith("."):
            continue
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:  # a person needs no lock
            continue
        if stat.S_ISDIR(status.st_mode) and depth < _DEPTH:
            inside = disk.open_directory(name, folder)
            try:
                yield from _read(inside, ours, f"{above}{name}/", depth + 1)
            finally:
                os.close(inside)
        elif stat.S_ISREG(status.st_mode) and name.endswith(".md"):
            content = disk.get(name, folder)
            is_ours = _digest(content) in ours
            yield MemoryFile(above + name, _text(content), status.st_mtime, is_ours)
        elif _DEBRIS.fullmatch(name):
            os.unlink(name, dir_fd=folder)  # of a writer that is gone: the lock is ours


def _known(files: Sequence[MemoryFile]) -> list[str]:
    found = [note_text.parse(one.text).fact for one in files if is_note(one.path)]
    lines = next((one.text for one in files if one.path == extracted_file.FILE), "")
    return found + [one.fact.text for one in extracted_file.read(lines)]


def _states(folder: int) -> dict[str, extraction.State]:
    try:
        return msgspec.json.decode(disk.get(_STATE, folder), type=dict[str, extraction.State])
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _checked(path: str) -> str:
    parts = path.split("/")
    if len(parts) > _DEPTH or not path.endswith(".md"):
        raise InvalidIdError(f"{path[:120]!r} is not a file of a memory")
    for part in parts:
        if not part or part.startswith(".") or "\0" in part or len(part.encode()) > 255:
            raise InvalidIdError(f"{path[:120]!r} is not a file of a memory")
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, from a model or a test: never from a file
        return text.encode("utf-8", "replace")


def _maybe(text: str | None) -> bytes | None:
    return None if text is None else _bytes(text)
