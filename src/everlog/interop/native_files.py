"""Sessions in files of our own layout, wherever they are: directories, and our own exports.

    {id}/session.jsonl, parts, metadata.json    a session of everlog, or of a program with this layout
    x.jsonl                                     a log alone: what `export --format native` writes
    x.json                                      live messages with metadata: `export --format json`

Nothing is written where they are. A log that does not hold its metadata gets them as a birth record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, is_ulid, ulid_at
from everlog.interop.formats.recognition import read_head
from everlog.interop.transcript_sources import FileSource
from everlog.log.fold import MetadataFold, from_builtins
from everlog.log.line_codec import build_line, decode, encode, from_object
from everlog.log.parts import part_name, part_number
from everlog.log.raw_lines import LocatedLine, number_lines
from everlog.model import AnyRecord, Damaged, Message, Metadata, Unknown
from everlog.ports import RawLine, SkippedFile
from everlog.stores import rules
from everlog.stores.file import metadata_file, transfer
from everlog.stores.file.disk import map_errors
from everlog.stores.file.log_reader import LogReader, holds_metadata

LOG = part_name(1)
_EXPORT = re.compile(rb'\s*\{\s*"metadata"\s*:')
_HEAD_BYTES = 100
_FIRST_LINES = 5  # of which one must be a record
_OWN_FILES = ("lock", "turn.lock", "torn.", "damaged.")  # beside a log
_REMOVED = {"tmp": "a session that was never finished", "trash": "a session that was deleted"}


class NativeSession(NamedTuple):
    """A session in files of our own layout."""

    metadata: Metadata
    lines: Callable[[], Iterator[RawLine | Damaged]]  # of its log, the birth record first if there is one
    is_whole: bool = True  # False: its live messages only
    format: str = "native"  # "ulid": of another program with this layout


def find_logs(
    files: Iterable[Path], skipped: Iterable[SkippedFile]
) -> tuple[list[Path], list[Path], list[SkippedFile]]:
    """Return the logs of our own layout, the other files, and what is skipped; without what belongs to a log."""
    paths, logs, others, left_out = list(files), [], [], []
    for path in paths:
        if path.suffix == ".jsonl" and (path.name == LOG or part_number(path.name) is None) and is_log(path):
            if reason := _refusal(path):
                left_out.append(SkippedFile(str(path), reason))
            else:
                logs.append(path)
    folders = {str(path.parent) for path in (*logs, *(Path(file.path) for file in left_out)) if path.name == LOG}
    known = {*map(str, logs), *(file.path for file in left_out)}
    for path in paths:
        belongs = str(path.parent) in folders and (
            path.name == metadata_file.NAME or part_number(path.name) is not None
        )
        if not belongs and str(path) not in known:
            others.append(path)
    for file in skipped:
        folder, _, name = file.path.rpartition("/")
        if folder not in folders or not name.startswith(_OWN_FILES):
            left_out.append(file)
    return logs, others, left_out


def is_log(path: Path) -> bool:
    """Return whether a file is a log of our own layout; a directory of a session may have an empty one."""
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return False
        with path.open("rb") as file:
            head = read_head(file)
    except OSError:
        return False
    if any(map(_is_record, head.split(b"\n")[:_FIRST_LINES])):
        return True
    return path.name == LOG and is_ulid(path.absolute().parent.name) and path.with_name(metadata_file.NAME).is_file()


def _is_record(line: bytes) -> bool:
    record = decode(line).record if b'"recordType"' in line else None
    return record is not None and not isinstance(record, Unknown)


def _refusal(path: Path) -> str:
    """Return why a log in a store's directory is no session; empty if it is one."""
    folder, parent = path.absolute().parent.parent, path.absolute().parent.parent.parent
    if folder.name in _REMOVED and (parent / "sessions").is_dir():
        return _REMOVED[folder.name]
    is_mirror = folder.name == "sessions" and parent.parent.name == "live"
    return "derived from a session of another program" if is_mirror else ""


def is_export(path: Path) -> bool:
    """Return whether a file begins like a JSON document of ours."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _EXPORT.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def read(path: Path) -> NativeSession:
    """Read a log or a JSON document of ours."""
    return read_json(path) if path.suffix == ".json" else read_log(path)


def read_log(path: Path) -> NativeSession:
    """Read the log of a session, with the parts and the metadata beside it if it is in a directory of its own."""
    folder = path.absolute().parent
    if path.name == LOG and is_ulid(folder.name):
        return _read_directory(folder)
    source = FileSource(path, has_parts=False)

    def lines() -> Iterator[RawLine | Damaged]:
        located = (
            LocatedLine(1, line.start, line.start + len(line.data), line.data)
            for line in source.lines(path.name)
            if line.ended
        )
        return number_lines(located)

    first = next((line for line in lines() if isinstance(line, RawLine)), None)
    if first is None:
        raise FormatError(f"{path.name} has no record")
    # The same for every import of this file, also after it has grown.
    created = epoch_ms(getattr(first.entry, "timestamp", "")) or 0
    fold = MetadataFold.empty(ulid_at(created, sha256(first.body).digest()))
    _fold_lines(fold, lines())
    return NativeSession(fold.metadata(1, 0), lines)


def _read_directory(folder: Path) -> NativeSession:
    session = folder.name

    def open_log() -> LogReader:
        return LogReader(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    with map_errors(f"reading {folder}"), open_log() as log:
        fold, _ = metadata_file.load(session, log)
        is_held = holds_metadata(log)
        initial = metadata_file.read_initial(session, log)
        birth = None if is_held else rules.adoption_line(MetadataFold(initial), 0, initial.created_at)

    def lines() -> Iterator[RawLine | Damaged]:
        if birth is not None:
            yield _to_raw(birth, 0)
        yield from transfer.read_lines(open_log())

    return NativeSession(fold.metadata(1, 0), lines, format="native" if is_held else "ulid")


def read_json(path: Path) -> NativeSession:
    """Read a JSON document that `export --format json` wrote."""
    try:
        value: Any = msgspec.json.decode(path.read_bytes())
        metadata = from_builtins(value["metadata"])
        messages = [from_object(message) for message in value["messages"]]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise FormatError(f"{path.name} is not a session that everlog exported: {error}") from error
    if not is_ulid(metadata.id) or not all(isinstance(message, Message) for message in messages):
        raise FormatError(f"{path.name} is not a session that everlog exported")
    lines = [
        _to_raw(rules.birth_line(MetadataFold(metadata)), 0),
        *(_renumber(message, seq) for seq, message in enumerate(messages, 1)),
    ]
    return NativeSession(metadata, lambda: iter(lines), is_whole=False)


def _renumber(record: AnyRecord, seq: int) -> RawLine:
    return _to_raw(build_line(encode(record)[1], record.record_type, seq), seq)


def _to_raw(line: bytes, seq: int) -> RawLine:
    record = decode(line).record
    assert record is not None
    return RawLine(1, seq, line, record)


def _fold_lines(fold: MetadataFold, lines: Iterator[RawLine | Damaged]) -> None:
    for line in lines:
        if isinstance(line, RawLine) and not isinstance(line.entry, Damaged):
            fold.add(line.entry)


def describe_damage(session: NativeSession) -> Sequence[str]:
    """Return what of a session cannot be read, as text."""
    problems = []
    for line in session.lines():
        damage = line if isinstance(line, Damaged) else line.entry
        if isinstance(damage, Damaged):
            problems.append(f"{damage.file}, bytes {damage.start} to {damage.end}: {damage.problem}")
    return problems
