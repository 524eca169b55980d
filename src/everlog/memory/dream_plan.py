"""A dream's plan: the changes to each file, with reasons in words.

It is made from the files as they were read and carries their text, so that whoever applies it can
detect that somebody wrote in between. Nothing here touches a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Literal, NamedTuple

import msgspec

from everlog.memory.note_files import MemoryFile, is_note
from everlog.memory.note_text import INDEX_FILE


class SessionSummary(NamedTuple):
    """The summary of a session, from its last compaction."""

    session: str
    day: date
    text: str


class Change(msgspec.Struct, frozen=True):
    """A change to one file."""

    path: str
    before: str | None  # None: the file does not exist
    after: str | None  # None: the file is removed
    reasons: tuple[str, ...]

    @property
    def kind(self) -> Literal["write", "rewrite", "remove"]:
        """Return what happens to the file."""
        if self.after is None:
            return "remove"
        return "write" if self.before is None else "rewrite"


class DreamPlan(msgspec.Struct, frozen=True):
    """All changes of one dream; they are applied together or not at all."""

    changes: tuple[Change, ...] = ()
    remarks: tuple[str, ...] = ()  # findings that were deliberately left alone
    maker: Literal["rules", "model"] = "rules"

    def report(self) -> str:
        """Return the plan as text for people."""
        rows = [f"- {change.kind} {change.path}: {'; '.join(change.reasons)}" for change in self.changes]
        rows += [f"- left as it is: {remark}" for remark in self.remarks]
        return "\n".join(rows) or "- nothing to do"


class DreamDraft:
    """A plan in the making: the files as they would be."""

    def __init__(self, files: Iterable[MemoryFile]) -> None:
        self.originals: Mapping[str, MemoryFile] = {file.path: file for file in files}
        self.texts = {path: file.text for path, file in self.originals.items()}
        self.remarks: list[str] = []
        self._reasons: dict[str, list[str]] = {}

    def write(self, path: str, text: str, reason: str) -> None:
        """Set the text of a file."""
        self.texts[path] = text
        self._add_reason(path, reason)

    def remove(self, path: str, reason: str) -> None:
        """Remove a file."""
        del self.texts[path]
        self._add_reason(path, reason)

    def may_change(self, path: str) -> bool:
        """Return whether the file's content was written by us alone."""
        return path not in self.originals or self.originals[path].generated

    def notes(self) -> list[str]:
        """Return the paths of the notes, in a stable order."""
        return sorted(path for path in self.texts if is_note(path))

    def text(self, path: str) -> str:
        """Return the text that a file would have; nothing if it does not exist."""
        return self.texts.get(path, "")

    def _add_reason(self, path: str, reason: str) -> None:
        reasons = self._reasons.setdefault(path, [])
        if reason not in reasons:
            reasons.append(reason)

    def to_plan(self, maker: Literal["rules", "model"] = "rules") -> DreamPlan:
        """Return the effective changes, notes before the index."""
        changes: list[Change] = []
        for path in sorted(self._reasons, key=lambda name: (name == INDEX_FILE, name)):
            before = self.originals[path].text if path in self.originals else None
            after = self.texts.get(path)
            if before != after:
                changes.append(Change(path, before, after, tuple(self._reasons[path])))
        return DreamPlan(tuple(changes), tuple(self.remarks), maker)
