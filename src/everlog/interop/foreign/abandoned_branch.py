"""Records of ours that a program left on an abandoned branch of its tree.

A program that keeps the end of its conversation in memory links its next entry to that end, also if
we appended to the file meanwhile: our entries become a branch that neither it nor we show. Those of
a running turn are written again at the new end of the conversation; others are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everlog.errors import EverlogError
from everlog.interop.foreign.lost_lines import FileChangedError
from everlog.interop.foreign.origin_marks import has_same_content, is_own, strip_mark
from everlog.interop.formats.format_types import derive_id
from everlog.model import AnyRecord, Message

if TYPE_CHECKING:
    from everlog.interop.foreign.mirrored_session import Mirror
    from everlog.interop.foreign.turn_lines import TurnLines

MAX_ATTEMPTS = 4  # to append after the lines of a program that is writing at the same time


def rejoin_records(mirror: Mirror, hidden: frozenset[int]) -> None:
    """Write those of the hidden records again that a running turn appended; report other ones of ours."""
    appended = {seq for turn in mirror.turns for seq in turn.seqs}  # what was written again is not marked as ours
    unsaved = {
        seq
        for seq in hidden
        if (seq in appended or is_own(mirror.record(seq))) and _is_missing(mirror, mirror.record(seq))
    }
    for turn in mirror.turns:
        seqs = [seq for seq in turn.seqs if seq in unsaved] if turn.is_open else []
        if seqs and _append_again(mirror, turn, seqs):
            unsaved.difference_update(seqs)
    if unsaved:
        mirror.files.report(
            f"its program continued {mirror.name} from before {len(unsaved)} records of ours: "
            "they are in the file, on a branch that is not shown"
        )


def _is_missing(mirror: Mirror, record: AnyRecord) -> bool:
    """Return whether a hidden record is a message that no copy of it follows."""
    if not isinstance(record, Message):
        return False
    later = mirror.records_from(record.seq + 1)
    return not any(isinstance(item, Message) and has_same_content(record, item) for item in later)


def _append_again(mirror: Mirror, turn: TurnLines, seqs: Sequence[int]) -> bool:
    """Append copies of records at the end of the conversation; return whether they are written."""
    records = [strip_mark(mirror.record(seq)) for seq in seqs]
    for _ in range(MAX_ATTEMPTS):
        # The old lines stay in the file, so the new ones need ids of their own.
        copies: list[AnyRecord] = [
            replace(record, id=derive_id(record.id, mirror.last_seq), line=b"") for record in records
        ]
        try:
            lines = mirror.append_again(copies)
        except FileChangedError:
            mirror.follow_again()
            continue
        except EverlogError as error:
            mirror.files.report(f"{len(seqs)} records of ours could not be written again: {error.message}")
            return False
        mirror.follow_again()
        for seq, copy, copy_lines in zip(seqs, copies, lines, strict=True):
            turn.replace(seq, copy_lines, new_seq=mirror.find_stored(copy).seq)
        return True
    return False
