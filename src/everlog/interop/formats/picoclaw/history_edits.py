"""PicoClaw's edits of a whole history: truncate it, replace it, reclaim its space.

The last two rewrite the transcript and return both files. PicoClaw writes the metadata file first,
so that a crash between the two shows too much rather than nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.format_types import FileEdit, MirrorLog, TailState, split_lines
from everlog.interop.formats.picoclaw.entry_builder import current_meta, encode_line
from everlog.interop.formats.picoclaw.go_json import format_go_time
from everlog.interop.formats.picoclaw.lines import is_in_history, is_only_thinking
from everlog.interop.formats.picoclaw.messages import write_message
from everlog.interop.formats.picoclaw.meta_file import ENDING, change_times, encode_meta, parse_meta, skip_count
from everlog.interop.formats.picoclaw.reader import LineState
from everlog.model import Message


def truncate(tail_state: TailState, log: MirrorLog, keep_last: int, now: str = "") -> FileEdit:
    """Return the edit for TruncateHistory: show only the last messages from now on."""
    state = msgspec.convert(tail_state, LineState)
    meta = current_meta(state, log)
    skip = min(skip_count(meta), state.line_count)
    lines = (line for line in (log.transcript.read_lines or tuple)() if line.data.removesuffix(b"\r"))
    shown = [number for number, line in enumerate(lines, 1) if number > skip and is_in_history(line.data)]
    if keep_last <= 0 or not shown:
        skip = state.line_count
    elif keep_last < len(shown):
        skip = shown[-keep_last - 1]
    times = change_times(meta, format_go_time(now))
    new_meta = encode_meta(meta, skip=skip, count=state.line_count, **times)
    return FileEdit(files={ENDING: new_meta})


def reclaim_lines(data: bytes, meta_bytes: bytes | None, now: str = "") -> tuple[bytes, bytes, bytes]:
    """Remove the lines that are no longer shown, as PicoClaw's Save does.

    Return the new transcript, the new metadata file, and the removed lines. The other lines stay as
    they are: PicoClaw itself would drop unknown keys in them.
    """
    meta = parse_meta(meta_bytes)
    if meta is None or not skip_count(meta):
        return data, meta_bytes or b"", b""
    kept: list[bytes] = []
    removed: list[bytes] = []
    number = 0
    for line in split_lines(data):
        if not line.data.removesuffix(b"\r"):
            continue
        number += 1
        is_kept = number > skip_count(meta) and is_in_history(line.data)
        (kept if is_kept else removed).append(line.data + b"\n")
    new_meta = encode_meta(meta, skip=0, count=len(kept), **change_times(meta, format_go_time(now)))
    return b"".join(kept), new_meta, b"".join(removed)


def encode_history(
    messages: Sequence[Message], meta_bytes: bytes | None, now: str, key: str = ""
) -> tuple[bytes, bytes]:
    """Return the transcript with exactly these messages and its metadata file, for SetHistory.

    The summary stays. `key` is for a session that has no metadata file yet.
    """
    meta = parse_meta(meta_bytes) or {"key": key}
    storable = [message for message in messages if not is_only_thinking(write_message(message))]
    times = (format_go_time(message.timestamp) or now for message in storable)
    lines = [encode_line(replace(message, timestamp=time)) for message, time in zip(storable, times, strict=True)]
    changed = change_times(meta, format_go_time(now))
    new_meta = encode_meta(meta, skip=0, count=len(lines), **changed)
    return b"".join(line + b"\n" for line in lines), new_meta
