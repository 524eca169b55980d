"""A dream's plan in the making: the files as they would be, with the reasons for each change.

The plan carries the text of the files as they were read, so that whoever applies it can detect
that somebody wrote in between. Nothing here touches a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from everlog.memory.notes import INDEX_FILE, MemoryFile, Note, is_note
from everlog.ports.memory import Change, DreamPlan


class DreamDraft:
    """The files of a memory as they would be after a dream."""

    def __init__(self, files: Iterable[MemoryFile]) -> None:
        self.originals: Mapping[str, MemoryFile] = {file.path: file for file in files}
        self.texts = {path: file.text for path, file in self.originals.items()}
        self.remarks: list[str] = []
        self._reasons: dict[str, dict[str, None]] = {}  # by path, in order

    def write(self, path: str, text: str, reason: str) -> None:
        """Set the text of a file."""
        self.texts[path] = text
        self._reasons.setdefault(path, {})[reason] = None

    def remove(self, path: str, reason: str) -> None:
        """Remove a file."""
        del self.texts[path]
        self._reasons.setdefault(path, {})[reason] = None

    def may_change(self, path: str) -> bool:
        """Return whether the file's content was written by us alone."""
        return path not in self.originals or self.originals[path].generated

    def modified(self, path: str) -> float:
        """Return when a file was last changed; 0 for one that does not exist yet."""
        return self.originals[path].modified if path in self.originals else 0.0

    def notes(self) -> list[str]:
        """Return the paths of the notes, in a stable order."""
        return sorted(path for path in self.texts if is_note(path))

    def text(self, path: str) -> str:
        """Return the text that a file would have; nothing if it does not exist."""
        return self.texts.get(path, "")

    def note(self, path: str) -> Note:
        """Return the note that a file would be."""
        return Note(self.text(path))

    def to_plan(self, maker: Literal["rules", "model"] = "rules") -> DreamPlan:
        """Return the effective changes, notes before the index."""
        changes: list[Change] = []
        for path in sorted(self._reasons, key=lambda name: (name == INDEX_FILE, name)):
            before = self.originals[path].text if path in self.originals else None
            after = self.texts.get(path)
            if before != after:
                changes.append(Change(path, before, after, tuple(self._reasons[path])))
        return DreamPlan(tuple(changes), tuple(self.remarks), maker)
