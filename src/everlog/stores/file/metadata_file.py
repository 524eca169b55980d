"""`metadata.json`: a cache of what the log says, brought up to date by folding only what is new.

Our own file ends in the same crc as a line, so a garbled one is known for what it is and rebuilt
from the log. Another writer's has none: its facts are taken, and records win over them.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from everlog.log.fold import Tally, from_builtins, to_builtins
from everlog.log.line_codec import crc_matches, has_crc
from everlog.model import SETTABLE, Damaged, Metadata, Through
from everlog.stores.file.disk import get, put
from everlog.stores.file.log_reader import OpenLog

NAME = "metadata.json"


def encode(metadata: Metadata) -> bytes:
    """The bytes of the file."""
    body = msgspec.json.encode(to_builtins(metadata))[:-1]
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def save(metadata: Metadata, directory: int, *, durable: bool) -> None:
    """Replace the file."""
    put(NAME, encode(metadata), directory, durable=durable)


def load(session: str, log: OpenLog) -> tuple[Tally, Through]:
    """The metadata of a session up to the end of its log, as a tally that can go on."""
    tally, start = _begin(session, log)
    return tally, catch_up(tally, log, start)


def catch_up(tally: Tally, log: OpenLog, start: Through) -> Through:
    """Fold in everything after a position; returns where the log ends now."""
    for entry in log.forward(start.part, start.bytes, start.seq):
        if isinstance(entry, Damaged):
            tally.skip()
        else:
            tally.add(entry)
    part, offset = log.reached
    return Through(part=part, bytes=offset, seq=tally.seq)


def covers(through: Through, log: OpenLog) -> bool:
    """Whether a position is a line's start in this log."""
    if through.part not in log.numbers:
        return through.part == 1 and through.bytes == 0
    part = log.part(through.part)
    if through.bytes == 0:
        return True
    return through.bytes <= part.size and part.pread(1, through.bytes - 1) == b"\n"


def shortfall(log: OpenLog) -> str:
    """What the file knew of and the log has not, in words; empty if all is there."""
    data, checked = _read(log)
    try:
        through = msgspec.convert(data.get("through"), Through) if checked else Through()
    except msgspec.ValidationError:
        return ""
    if covers(through, log):
        return ""
    return f"the log once went to seq {through.seq}, byte {through.bytes} of part {through.part}"


def _read(log: OpenLog) -> tuple[dict[str, Any], bool]:
    """The file's object and whether its crc vouches for it; empty if it is no use."""
    try:
        raw = get(NAME, log.directory).rstrip(b"\n")
        data = msgspec.json.decode(raw)
    except (OSError, ValueError, RecursionError):
        return {}, False
    if not isinstance(data, dict):
        return {}, False
    data.pop("crc", None)
    if has_crc(raw) and not crc_matches(raw):
        # Garbled: worth something only while no record says better.
        return (data if log.size() == 0 else {}), False
    return data, has_crc(raw)


def _begin(session: str, log: OpenLog) -> tuple[Tally, Through]:
    data, checked = _read(log)
    # Not of a session that was copied by hand, and not of a version that did not count what was
    # spent: then the log is read once more.
    if checked and data.get("id") == session and "spent" in data:
        try:
            known = from_builtins(data)
        except msgspec.ValidationError:
            known = None
        if known is not None and covers(known.through, log):
            return Tally(known), known.through
    facts = {key: value for key, value in data.items() if key in SETTABLE or key not in _OURS}
    blank = Tally.fresh(session).metadata(1, 0)
    try:
        base = from_builtins({**to_builtins(blank), **facts})
    except msgspec.ValidationError:
        base = blank
    return Tally(base), Through()


_OURS = frozenset(Metadata.__struct_encode_fields__)
