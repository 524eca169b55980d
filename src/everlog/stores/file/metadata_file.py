"""`metadata.json`: a cache of the log's metadata, updated by folding only new records.

A native file ends in a crc like a line, so a corrupt one is detected and rebuilt from the log.
That of another program has none: its fields are adopted, and records override them.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from everlog.log.fold import MetadataFold, adopt_counts, from_builtins, to_builtins
from everlog.log.line_codec import crc_matches, has_crc
from everlog.model import SETTABLE, Damaged, Metadata, Through
from everlog.stores.file.disk import read_small_file, replace_small_file
from everlog.stores.file.log_reader import LogReader

NAME = "metadata.json"


def encode(metadata: Metadata) -> bytes:
    """Return the bytes of the file."""
    body = msgspec.json.encode(to_builtins(metadata))[:-1]
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def save(metadata: Metadata, directory: int, *, durable: bool) -> None:
    """Replace the file."""
    replace_small_file(NAME, encode(metadata), directory, durable=durable)


def load(session: str, log: LogReader) -> tuple[MetadataFold, Through]:
    """Return the fold of a session up to the end of its log, and that position."""
    fold, start = _start_fold(session, log)
    return fold, catch_up(fold, log, start)


def catch_up(fold: MetadataFold, log: LogReader, start: Through) -> Through:
    """Fold in everything after a position; returns the end of the log."""
    for entry in log.forward(start.part, start.bytes, start.seq):
        if isinstance(entry, Damaged):
            fold.skip_damaged()
        else:
            fold.add(entry)
    part, offset = log.position
    return Through(part=part, bytes=offset, seq=fold.seq)


def covers(through: Through, log: LogReader) -> bool:
    """Return whether a position is the start of a line in this log."""
    if through.part not in log.numbers:
        return through.part == 1 and through.bytes == 0
    part = log.part(through.part)
    if through.bytes == 0:
        return True
    return through.bytes <= part.size and part.pread(1, through.bytes - 1) == b"\n"


def describe_shortfall(log: LogReader) -> str:
    """Describe what the file covers and the log lacks; empty if nothing is missing."""
    data, checked = _read(log)
    try:
        through = msgspec.convert(data.get("through"), Through) if checked else Through()
    except msgspec.ValidationError:
        return ""
    if covers(through, log):
        return ""
    return f"the log once reached seq {through.seq}, byte {through.bytes} of part {through.part}"


def _read(log: LogReader) -> tuple[dict[str, Any], bool]:
    """Return the file's object, and whether its crc matches; empty if it is unusable."""
    try:
        raw = read_small_file(NAME, log.directory).rstrip(b"\n")
        data = msgspec.json.decode(raw)
    except (OSError, ValueError, RecursionError):
        return {}, False
    if not isinstance(data, dict):
        return {}, False
    data.pop("crc", None)
    if has_crc(raw) and not crc_matches(raw):
        # Corrupt: only of use as long as there are no records.
        return (data if log.total_size() == 0 else {}), False
    return data, has_crc(raw)


def _start_fold(session: str, log: LogReader) -> tuple[MetadataFold, Through]:
    data, checked = _read(log)
    # Not for a session that was copied by hand, nor from a version that did not count usage:
    # then the log is read again.
    if checked and data.get("id") == session and "spent" in data:
        try:
            cached = from_builtins(data)
        except msgspec.ValidationError:
            cached = None
        if cached is not None and covers(cached.through, log):
            return MetadataFold(cached), cached.through
    return MetadataFold(_initial(session, data, checked=checked)), Through()


def read_initial(session: str, log: LogReader) -> Metadata:
    """Return what the file says and no record of the log may hold; nothing that records count."""
    data, checked = _read(log)
    return _initial(session, data, checked=checked)


def _initial(session: str, data: dict[str, Any], *, checked: bool) -> Metadata:
    fields = {key: data[key] for key in data if key in SETTABLE or key not in _NATIVE_KEYS}
    blank = MetadataFold.empty(session).metadata(1, 0)
    try:
        base = from_builtins({**to_builtins(blank), **fields})
    except msgspec.ValidationError:
        base = blank
    return base if checked else adopt_counts(base, data)  # what another program counted


_NATIVE_KEYS = frozenset(Metadata.__struct_encode_fields__)
