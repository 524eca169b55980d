"""A memory on disk: a directory of Markdown files that people edit and several processes share.

    MEMORY.md  extracted.md  NOTE.md …       the content; all of it may be edited by hand
    .lock                                    flock, held by us during every read and write
    .written                                 digests of what we wrote: all else is a person's
    .extraction_state.json                   how far each session has been processed
    .plan-staged  .plan  .history            see `transaction.py`
    .consolidation_state.json  .consolidation_lock   see `dream_state.py`

Each file is replaced atomically, and so is each plan. A person needs no lock: a file that changed
since it was read is not overwritten, and a file that differs from what we wrote is a person's.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import date
from pathlib import Path
from typing import NamedTuple

from everlog.errors import ConflictError, InvalidIdError, NotFoundError
from everlog.memory import extracted_file, index_file, transaction
from everlog.memory.extracted_file import FactLine
from everlog.memory.extraction import ExtractionState
from everlog.memory.facts import select_new
from everlog.memory.notes import EXTRACTED_FILE, INDEX_FILE, MemoryFile, find_text, select_notes
from everlog.memory.recall import MemoryItem, collect_items, rank_items
from everlog.memory.transaction import HistoryEntry, Swap
from everlog.ports.memory import DreamPlan, Fact
from everlog.stores.file import disk
from everlog.stores.file.json_file import JsonFile

LISTING_LIMIT = 200  # notes
LOCK_SECONDS = 5.0
_DIGESTS_FILE, _STATE_FILE = ".written", ".extraction_state.json"
_MAX_DIGESTS = 20_000  # above this, the older half is dropped
_MAX_SESSIONS = 5_000  # states of sessions; older ones are dropped
_MAX_DEPTH = 8
_States = dict[str, ExtractionState]  # by session
_TEMPORARY_FILE = re.compile(r".+\.\d+\.tmp")


class MemoryContents(NamedTuple):
    """What a memory contains, for people."""

    index_text: str  # MEMORY.md, as a model is shown it
    notes: list[MemoryFile]  # newest first
    facts: list[FactLine]  # extracted, and in no note yet


class UndoResult(NamedTuple):
    """The plan that an undo reverted."""

    id: str
    paths: tuple[str, ...]
    report: str  # of the undone plan


class MemoryDirectory:
    """One memory. Every method may be called from any thread and process at any time."""

    def __init__(
        self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._lock_seconds = lock_seconds  # then SessionBusyError
        self._states: JsonFile[_States] = JsonFile(self.path / _STATE_FILE, _States)

    def _open_locked(self) -> AbstractContextManager[int]:
        return transaction.open_locked(self.path, self._lock_seconds)

    def _open_readable(self) -> AbstractContextManager[int]:
        return transaction.open_readable(self.path, self._lock_seconds)

    # --- reading

    def files(self) -> list[MemoryFile]:
        """Return all Markdown files, newest first."""
        if not self.path.is_dir():
            return []
        with self._open_readable() as folder:
            digests = _read_digests(folder)
            return sorted(_read_files(folder, digests), key=lambda file: (-file.modified, file.path))

    def contents(self) -> MemoryContents:
        """Return the index, the notes and the extracted facts."""
        files = self.files()
        index = index_file.truncate(find_text(files, INDEX_FILE) or "")
        return MemoryContents(index, select_notes(files), _extracted_lines(files))

    def search(self, message: str, limit: int) -> list[MemoryItem]:
        """Return the notes and facts that a message is about, best first."""
        return rank_items(collect_items(self.files()), message, limit)

    def notes(self, limit: int = LISTING_LIMIT) -> list[MemoryFile]:
        """Return the notes, newest first."""
        return select_notes(self.files())[:limit]

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None."""
        if not self.path.is_dir():
            return None
        with self._open_readable() as folder:
            content = transaction.read_file(folder, _check_path(path))
        return None if content is None else _decode(content)

    def truncated_index(self) -> str:
        """Return the index within its limits, as a model is shown it."""
        return index_file.truncate(self.read(INDEX_FILE) or "")

    def known_facts(self) -> list[str]:
        """Return the facts in notes and extracted lines, for comparison with new ones."""
        return _known_facts(self.files())

    def extraction_state(self, session: str) -> ExtractionState:
        """Return how far a session has been processed."""
        return self._states.load({}).get(session, ExtractionState())

    def history(self) -> list[HistoryEntry]:
        """Return the applied plans and undos, oldest first."""
        if not self.path.is_dir():
            return []
        with self._open_readable() as folder:
            return transaction.read_history(folder)

    def versions(self, path: str) -> list[str]:
        """Return a file as it is and as it was in all changes of the history."""
        texts = [self.read(path) or ""]
        if self.path.is_dir():
            with self._open_locked() as folder:
                for entry in transaction.read_history(folder):
                    swaps = [swap for swap in transaction.load_swaps(folder, entry) if swap.path == path]
                    texts += [_decode(content) for swap in swaps for content in (swap.old, swap.new) if content]
        return texts

    # --- writing

    def put(self, path: str, text: str, *, by_person: bool = False) -> None:
        """Write one file, without an entry in the history. Durable on return.

        A file written `by_person` counts as edited by hand: no dream rewrites it.
        """
        _check_path(path)
        with self._open_locked() as folder:
            if not by_person:
                _record_digests(folder, [_encode(text)])
            transaction.replace_file(folder, path, _encode(text))

    def clear(self) -> list[str]:
        """Remove all Markdown files and their history, nothing else; returns their paths."""
        if not self.path.is_dir():
            return []
        with self._open_locked() as folder:
            paths = sorted(file.path for file in _read_files(folder, frozenset()))
            for path in (*paths, _DIGESTS_FILE, _STATE_FILE):
                transaction.replace_file(folder, path, None)
            with suppress(FileNotFoundError):
                os.rename(transaction.HISTORY, transaction.STAGED, src_dir_fd=folder, dst_dir_fd=folder)
            transaction.recover(folder)
            return paths

    def record_extraction(self, session: str, facts: Sequence[Fact], state: ExtractionState, day: date) -> list[Fact]:
        """Store extracted facts and the new state; returns the facts that were new.

        Facts are written first: after a crash in between they are extracted again and recognised.
        """
        with self._open_locked() as folder:
            files = list(_read_files(folder, frozenset()))
            new = select_new(facts, _known_facts(files))
            if new:
                text = extracted_file.add_facts(find_text(files, EXTRACTED_FILE) or "", new, day)
                transaction.replace_file(folder, EXTRACTED_FILE, _encode(text))
            states = self._states.load({})
            states.pop(session, None)
            states[session] = state
            self._states.save(dict(list(states.items())[-_MAX_SESSIONS:]))
            return new

    def apply(self, plan: DreamPlan, *, by_person: bool = False, forgets: Sequence[str] = ()) -> str:
        """Apply all changes of a plan, or none if a file was edited (ConflictError).

        Returns the id of its history entry, or "" if it has none. Files written `by_person` count as
        edited by hand. Texts that the plan `forgets` are in no history afterwards: it cannot be undone.
        """
        if not plan.changes:
            return ""
        swaps = [
            Swap(_check_path(change.path), _encode_optional(change.before), _encode_optional(change.after))
            for change in plan.changes
        ]
        with self._open_locked() as folder:
            _check_unedited(folder, swaps, "plan again")
            if not by_person:
                _record_digests(folder, [swap.new for swap in swaps if swap.new is not None])
            return transaction.commit(folder, swaps, self._clock(), plan.report(), forgets=forgets)

    def undo(self) -> UndoResult:
        """Undo the last plan; ConflictError, naming the files, if one was edited since."""
        with self._open_locked() as folder:
            history = reversed(transaction.read_history(folder))
            last = next((entry for entry in history if not entry.manifest.undoes and not entry.undone), None)
            if last is None:
                raise NotFoundError("nothing to undo in this memory")
            swaps = [Swap(swap.path, swap.new, swap.old) for swap in transaction.load_swaps(folder, last)]
            _check_unedited(folder, swaps, "revert that edit first, or change the files by hand")
            transaction.commit(folder, swaps, self._clock(), f"- undid {last.id}", undoes=last.id)
            return UndoResult(last.id, tuple(swap.path for swap in swaps), last.manifest.report)


def _check_unedited(folder: int, swaps: Sequence[Swap], hint: str) -> None:
    edited = [swap.path for swap in swaps if transaction.read_file(folder, swap.path) != swap.old]
    if edited:
        raise ConflictError(f"edited since: {', '.join(edited)}; nothing was changed", hint=hint, paths=edited)


def _read_digests(folder: int) -> frozenset[str]:
    content = transaction.read_file(folder, _DIGESTS_FILE) or b""
    return frozenset(content.decode("ascii", "replace").split())


def _record_digests(folder: int, contents: Sequence[bytes]) -> None:
    """Record digests before the write; an extra one after a crash does no harm."""
    recorded = _read_digests(folder)
    new = [digest for digest in map(_digest, contents) if digest not in recorded]
    if not new:
        return
    # The leading newline ends a line that a crash tore.
    rows = "".join(f"\n{digest}" for digest in new).encode()
    if len(recorded) + len(new) > _MAX_DIGESTS:
        newest = disk.read_small_file(_DIGESTS_FILE, folder).split()[-_MAX_DIGESTS // 2 :]
        disk.replace_small_file(_DIGESTS_FILE, b"\n".join(newest) + rows, folder, durable=True)
        return
    with disk.opened_file(_DIGESTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, folder) as digests_file:
        disk.write_all(digests_file, rows)
        disk.sync(digests_file)


def _read_files(folder: int, digests: frozenset[str], prefix: str = "", depth: int = 0) -> Iterator[MemoryFile]:
    """Yield the Markdown files below a directory; symlinks and hidden names are skipped."""
    for name in os.listdir(folder):
        if name.startswith("."):
            continue
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:  # a person removed it; people take no lock
            continue
        if stat.S_ISDIR(status.st_mode) and depth < _MAX_DEPTH:
            with disk.opened_directory(name, folder) as subfolder:
                yield from _read_files(subfolder, digests, f"{prefix}{name}/", depth + 1)
        elif stat.S_ISREG(status.st_mode) and name.endswith(".md"):
            content = disk.read_small_file(name, folder)
            generated = _digest(content) in digests
            yield MemoryFile(prefix + name, _decode(content), status.st_mtime, generated)
        elif _TEMPORARY_FILE.fullmatch(name):
            os.unlink(name, dir_fd=folder)  # its writer is gone: we hold the lock


def _known_facts(files: Sequence[MemoryFile]) -> list[str]:
    return [file.note.fact for file in select_notes(files)] + [line.fact.text for line in _extracted_lines(files)]


def _extracted_lines(files: Sequence[MemoryFile]) -> list[FactLine]:
    return extracted_file.parse_lines(find_text(files, EXTRACTED_FILE) or "")


def _check_path(path: str) -> str:
    parts = path.split("/")
    invalid = any(not part or part.startswith(".") or "\0" in part or len(part.encode()) > 255 for part in parts)
    if invalid or len(parts) > _MAX_DEPTH or not path.endswith(".md"):
        raise InvalidIdError(f"{path[:120]!r} is not a file of a memory")
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, never from a file
        return text.encode("utf-8", "replace")


def _encode_optional(text: str | None) -> bytes | None:
    return None if text is None else _encode(text)
