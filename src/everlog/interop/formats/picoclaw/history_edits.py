"""What PicoClaw does to a history as a whole: cut it, put another in its place, reclaim its space.

The two that write the transcript anew give both files: PicoClaw writes the second one first, so
that a crash between the two shows too much rather than nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from everlog.interop.formats.format_types import split
from everlog.interop.formats.live_format import Added, Log, Notes
from everlog.interop.formats.picoclaw.entry_builder import line_of, present
from everlog.interop.formats.picoclaw.go_json import go_time
from everlog.interop.formats.picoclaw.line_numbers import State
from everlog.interop.formats.picoclaw.lines import is_shown, is_thought
from everlog.interop.formats.picoclaw.messages import write_message
from everlog.interop.formats.picoclaw.meta_file import ENDING, about, anew, dated, skip_of
from everlog.model import Message


def truncate(notes: Notes, log: Log, keep_last: int, now: str = "") -> Added:
    """TruncateHistory: only the last messages are shown from now on."""
    state = State.of(notes)
    old = present(state, log)
    skip = min(skip_of(old), state.raw)
    if keep_last <= 0 or state.from_end(1, state.dead) <= skip:
        skip = state.raw
    else:
        skip = max(state.from_end(keep_last + 1, state.dead), skip)
    return Added(files={ENDING: anew(old, skip=skip, count=state.raw, **dated(old, go_time(now)))})


def reclaimed(data: bytes, beside: bytes | None, now: str = "") -> tuple[bytes, bytes, bytes]:
    """Save: the transcript without the lines that are not shown any more.

    The new transcript, the new second file, and the lines that were taken out. Lines that stay are
    as they were: PicoClaw would drop keys in them that it does not know.
    """
    old = about(beside)
    if old is None or not skip_of(old):
        return data, beside or b"", b""
    stay: list[bytes] = []
    gone: list[bytes] = []
    number = 0
    for line in split(data):
        if not line.data.removesuffix(b"\r"):
            continue
        number += 1
        shown = number > skip_of(old) and is_shown(line.data)
        (stay if shown else gone).append(line.data + b"\n")
    second = anew(old, skip=0, count=len(stay), **dated(old, go_time(now)))
    return b"".join(stay), second, b"".join(gone)


def history_set(
    messages: Sequence[Message], beside: bytes | None, now: str, key: str = ""
) -> tuple[bytes, bytes]:
    """SetHistory: the transcript with these messages and no others, and the second file.

    The summary stays. `key`: of a session that has no second file yet.
    """
    old = about(beside) or {"key": key}
    said = [one for one in messages if not is_thought(write_message(one))]
    dates = (go_time(one.timestamp) or now for one in said)
    lines = [line_of(replace(one, timestamp=at)) for one, at in zip(said, dates, strict=True)]
    second = anew(old, skip=0, count=len(lines), **dated(old, go_time(now)))
    return b"".join(line + b"\n" for line in lines), second
