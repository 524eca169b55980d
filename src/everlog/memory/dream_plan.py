"""A plan: what a dream is about to change, file by file, each with its reasons in words.

It is made from the files as they were read and carries what they said then, so that whoever applies
it can see that nobody wrote in between. Nothing here touches a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Literal, NamedTuple

import msgspec

from everlog.memory.note_files import MemoryFile, is_note
from everlog.memory.note_text import INDEX


class Summary(NamedTuple):
    """What a session was about, as its last compaction says."""

    session: str
    day: date
    text: str


class Change(msgspec.Struct, frozen=True):
    """One file that becomes another."""

    path: str
    before: str | None  # None: there is no such file
    after: str | None  # None: there will be none
    reasons: tuple[str, ...]

    @property
    def kind(self) -> Literal["write", "rewrite", "remove"]:
        """What happens to the file."""
        if self.after is None:
            return "remove"
        return "write" if self.before is None else "rewrite"


class Plan(msgspec.Struct, frozen=True):
    """All changes of one dream; they are made together or not at all."""

    changes: tuple[Change, ...] = ()
    remarks: tuple[str, ...] = ()  # what was found and deliberately left as it is
    maker: Literal["rules", "model"] = "rules"

    def report(self) -> str:
        """The plan as a person reads it."""
        rows = [
            f"- {change.kind} {change.path}: {'; '.join(change.reasons)}" for change in self.changes
        ]
        rows += [f"- left as it is: {remark}" for remark in self.remarks]
        return "\n".join(rows) or "- nothing to do"


class Draft:
    """A plan in the making: the files as they would be."""

    def __init__(self, files: Iterable[MemoryFile]) -> None:
        self.read: Mapping[str, MemoryFile] = {one.path: one for one in files}
        self.texts = {path: one.text for path, one in self.read.items()}
        self.remarks: list[str] = []
        self._reasons: dict[str, list[str]] = {}

    def write(self, path: str, text: str, reason: str) -> None:
        """Give a file this text."""
        self.texts[path] = text
        self._because(path, reason)

    def remove(self, path: str, reason: str) -> None:
        """Take a file away."""
        del self.texts[path]
        self._because(path, reason)

    def may_change(self, path: str) -> bool:
        """Whether nobody but us wrote what the file says."""
        return path not in self.read or self.read[path].ours

    def notes(self) -> list[str]:
        """The paths of the notes, in a stable order."""
        return sorted(path for path in self.texts if is_note(path))

    def text(self, path: str) -> str:
        """What a file would say; nothing if there is none."""
        return self.texts.get(path, "")

    def _because(self, path: str, reason: str) -> None:
        reasons = self._reasons.setdefault(path, [])
        if reason not in reasons:
            reasons.append(reason)

    def plan(self, maker: Literal["rules", "model"] = "rules") -> Plan:
        """The changes, notes before the index, without those that came to nothing."""
        changes: list[Change] = []
        for path in sorted(self._reasons, key=lambda one: (one == INDEX, one)):
            before = self.read[path].text if path in self.read else None
            after = self.texts.get(path)
            if before != after:
                changes.append(Change(path, before, after, tuple(self._reasons[path])))
        return Plan(tuple(changes), tuple(self.remarks), maker)
