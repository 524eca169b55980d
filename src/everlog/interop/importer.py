"""Finding foreign sessions on disk, and importing them into a store.

Every record has an id that is derived from its source, and an imported session is found again by
its id in its format. So importing twice adds nothing, a file that has grown adds its new records,
and an interrupted run continues where it stopped. The source is never changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, FormatError, StoreFullError
from everlog.ids import is_name
from everlog.interop.formats.format_types import (
    DERIVED_KEY,
    MAX_LINE_BYTES,
    DamagedBytes,
    ForeignSession,
    Format,
    HiddenMessages,
    Item,
    Line,
    Summary,
    derive_id,
    extra_field,
)
from everlog.interop.formats.recognition import detect, read_head
from everlog.log.line_codec import from_object, with_keys
from everlog.model import SETTABLE, AnyRecord, Compaction, Damaged, Event, Message, Meta, Tombstone
from everlog.ports import Store

MAX_ANCESTORS = 5  # folders above a transcript in which a file of its program is looked for
BATCH_BYTES = 4_000_000  # of one write, about
BATCH = 500  # records of one write
CHUNK = 1 << 20
_RECORDS = (Message, Event, Meta)
TOO_LARGE = "import.too_large"  # event in place of a record that is too large for a line
ENDINGS = (".jsonl", ".json")
_PART = re.compile(r"_part[0-9]+$")
_SESSION_FOLDERS = ("subagents", "tool-results")  # their files belong to a session


class ImportResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of importing one file."""

    path: str
    id: str | None = None
    format: str = ""
    records_in: int = msgspec.field(default_factory=lambda: 0)  # lines
    records_out: int = msgspec.field(default_factory=lambda: 0)  # of them in the session
    added: int = msgspec.field(default_factory=lambda: 0)  # by this run
    lost: tuple[str, ...] = msgspec.field(default_factory=lambda: ())
    children: tuple[ImportResult, ...] = ()
    problem: str = ""  # why nothing was imported


# --- files on disk ----------------------------------------------------------------------------


class FileSource:
    """A transcript on disk, with its parts, its metadata file and its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.rpartition(".")[0]
        self.modified_ms = int(path.stat().st_mtime * 1000)

    def paths(self) -> Sequence[str]:
        """Return the transcript, its parts, its metadata file, and the files in its folder."""
        folder = self.path.parent
        paths = [self.path.name]
        pattern = f"{_escape_glob(self.name)}_part*{self.path.suffix}"
        parts = (path.name for path in folder.glob(pattern))
        paths += sorted(parts, key=lambda name: (len(name), name))
        metadata = f"{self.name}.meta.json"
        paths += [metadata] if (folder / metadata).is_file() else []
        nested = sorted((folder / self.name).rglob("*")) if (folder / self.name).is_dir() else []
        paths += [path.relative_to(folder).as_posix() for path in nested if path.is_file() and not path.is_symlink()]
        return paths

    def lines(self, path: str) -> Iterator[Line]:
        """Yield the lines of one file. A line above MAX_LINE_BYTES is cut off."""
        with (self.path.parent / path).open("rb") as file:
            remainder, start = b"", 0
            while chunk := file.read(CHUNK):
                lines = (remainder + chunk).split(b"\n")
                remainder = lines.pop()
                for line in lines:
                    yield Line(start, line)
                    start += len(line) + 1
                if len(remainder) > MAX_LINE_BYTES:
                    skipped = _skip_to_newline(file)
                    yield Line(start, remainder, ended=skipped >= 0)
                    start, remainder = file.tell(), b""
            if remainder:
                yield Line(start, remainder, ended=False)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return (self.path.parent / path).read_bytes()

    def find_ancestor(self, name: str) -> bytes | None:
        """Return the nearest file with this name in the folders above."""
        for folder in islice(self.path.absolute().parents, 1, MAX_ANCESTORS + 1):
            with suppress(OSError):
                return (folder / name).read_bytes()
        return None

    def find_related(self, part: str) -> bytes | None:
        """Return another transcript of the tree by a part of its file name."""
        # A tree by date is searched from its top, any other folder alone.
        top = next(folder for folder in self.path.absolute().parents if not folder.name.isdecimal())
        return next((path.read_bytes() for path in sorted(top.rglob(f"*{_escape_glob(part)}*"))), None)


def _skip_to_newline(file: Any) -> int:
    """Seek to after the next newline; return -1 if there is none."""
    while chunk := file.read(CHUNK):
        newline: int = chunk.find(b"\n")
        if newline >= 0:
            file.seek(newline + 1 - len(chunk), os.SEEK_CUR)
            return newline
    return -1


def _escape_glob(name: str) -> str:
    """Return a glob pattern that matches only this name."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the possible transcripts among files and in folders.

    Parts, metadata files and files in a session's own folder are not among them: they belong to
    their transcript.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_file():
            files.append(path)
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(inner for inner in folders if inner not in _SESSION_FOLDERS)
            for name in sorted(names):
                stem, dot, ending = name.rpartition(".")
                if dot + ending not in ENDINGS or name.endswith(".meta.json"):
                    continue
                is_part = _PART.search(stem) and f"{_PART.sub('', stem)}.{ending}" in names
                if not is_part and not os.path.islink(os.path.join(folder, name)):
                    files.append(Path(folder, name))
    return files


def detect_format(path: Path, formats: Sequence[Format]) -> Format | None:
    """Detect the format of a file from its content; None if no format recognises it."""
    with path.open("rb") as file:
        return detect(path.name, read_head(file), formats)


# --- importing ---------------------------------------------------------------------------


def import_files(
    store: Store,
    files: Sequence[Path],
    formats: Sequence[Format],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ImportResult]:
    """Import each file that a format recognises; the result of any other has a problem."""
    for number, file in enumerate(files, 1):
        try:
            format = detect_format(file, formats)
            if format is None:
                raise FormatError("not a session in a known format")
            result = import_session(store, format.NAME, format.read(FileSource(file)))
            yield replace(result, path=str(file))
        except EverlogError as error:
            yield ImportResult(path=str(file), problem=str(error))
        except OSError as error:
            yield ImportResult(path=str(file), problem=error.strerror or str(error))
        if progress is not None:
            progress(number, len(files))


def import_session(store: Store, format: str, source: ForeignSession, parent: str | None = None) -> ImportResult:
    """Import one session with its subagents' sessions."""
    session = _find_or_create(store, format, source)
    target = ImportTarget(store, session)
    extra = {key: value for key, value in source.metadata.items() if key not in SETTABLE}
    if parent is not None:
        extra["parent"] = {**extra.get("parent", {}), "id": parent}
    if extra:
        target.add(Meta(set=extra, id=derive_id(source.session_id, repr(sorted(extra.items())))))
    for item in hide_before_summaries(source.session_id, source.items):
        target.add(item)
    target.flush()
    children = tuple(import_session(store, format, child, session) for child in source.children)
    return ImportResult(
        path=source.session_id,
        id=session,
        format=format,
        records_in=source.line_count,
        records_out=sum(item.id in target.seqs or isinstance(item, HiddenMessages) for item in source.items),
        added=target.added,
        lost=(*map(_describe_damage, source.damage), *target.problems),
        children=children,
    )


def hide_before_summaries(session_id: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items; abandoned branches are hidden before the first summary that follows them.

    Hidden after it, they would look like deleted messages that the summary still mentions.
    """
    hidden = {
        hidden_id for item in items if isinstance(item, HiddenMessages) and not item.extra for hidden_id in item.ids
    }
    hidden_so_far: list[str] = []
    for item in items:
        if isinstance(item, Summary) and hidden_so_far:
            item_id = derive_id(session_id, f"left before {item.id}: {' '.join(hidden_so_far)}")
            yield _HiddenEarly(id=item_id, ids=tuple(hidden_so_far), timestamp=item.timestamp)
            hidden_so_far = []
        if item.id in hidden:
            hidden_so_far.append(item.id)
        yield item
    if not hidden:  # restore what an earlier import hid
        item_id = derive_id(session_id, f"nothing is hidden in {len(items)}")
        yield HiddenMessages(id=item_id, ids=())


def _describe_damage(damage: DamagedBytes) -> str:
    return f"{damage.path}, bytes {damage.start} to {damage.end}: {damage.problem}"


def _find_or_create(store: Store, format: str, source: ForeignSession) -> str:
    """Return the session that the source was imported to before, or create one.

    Its key is its id in its format, which no other source has. Its own key and aliases become
    aliases, unless another session holds them: an import never goes into that session.
    """
    name = f"{format}:{source.session_id}"
    if not is_name(name):
        raise FormatError(f"not a valid session name: {name[:60]!r}")
    metadata = {key: value for key, value in source.metadata.items() if key in SETTABLE}
    metadata.pop("model", None)  # it is only that of the answers
    names = (metadata.pop("key", ""), *metadata.pop("aliases", ()))
    free_names = [alias for alias in dict.fromkeys(names) if is_name(alias) and _is_free(store, alias)]
    metadata |= {"key": name, "aliases": free_names, "source": metadata.get("source", format)}
    return store.create(metadata, unless_held=True, at=source.created_ms or None).id


def _is_free(store: Store, name: str) -> bool:
    try:
        return name not in store.metadata(store.resolve(name)).names
    except EverlogError:  # no session's name, or an ambiguous prefix of ids
        return True


class _HiddenEarly(HiddenMessages, frozen=True, kw_only=True):
    """Some of the hidden messages, hidden earlier than the others."""


class ImportTarget:
    """The session that is imported to, with the ids of its records."""

    def __init__(self, store: Store, session: str, other_id: Callable[[AnyRecord], str] = lambda record: "") -> None:
        """`other_id` returns a second id of a record, or an empty string."""
        self._store = store
        self._session = session
        self.seqs: dict[str, int] = {}  # by id
        self._last_seq = 0
        self._hidden: set[int] = set()  # by an earlier import: messages on abandoned branches
        for entry in store.read(session):
            self._last_seq = max(self._last_seq, entry.seq or 0)
            if isinstance(entry, Damaged):
                continue
            for record_id in (entry.id, other_id(entry)):
                if record_id:
                    self.seqs[record_id] = entry.seq
            if isinstance(entry, Event) and entry.kind == TOO_LARGE:
                self.seqs[str(entry.data.get("id"))] = entry.seq  # in place of that record
            if isinstance(entry, Tombstone) and extra_field(entry, DERIVED_KEY):
                self._hidden = (self._hidden - set(entry.restores)) | set(entry.deletes)
        self._batch: list[AnyRecord] = []
        self._size = 0
        self.added = 0
        self.problems: list[str] = []

    def add(self, item: Item | Meta) -> None:
        """Add an item unless it is stored already."""
        if item.id in self.seqs:
            return
        if len(self._batch) >= BATCH or self._size >= BATCH_BYTES:
            self.flush()
        record = item if isinstance(item, _RECORDS) else self._record(item)
        if record is None:
            return
        self._batch.append(record)
        self.seqs[item.id] = self._last_seq + len(self._batch)
        self._size += len(record.line) or 1_000

    def flush(self, extra: dict[str, Any] | None = None) -> None:
        """Write the batch; `extra` are additional keys for its last record."""
        batch, self._batch, self._size = self._batch, [], 0
        if not batch:
            return
        if extra is not None:
            batch[-1] = with_keys(batch[-1], extra)
        try:
            self._write(batch)
        except StoreFullError:
            for record in batch:  # one of them is too large for a line
                self._write_or_replace(record)

    def _write(self, batch: list[AnyRecord]) -> None:
        stored = self._store.append(self._session, batch, expected_seq=self._last_seq)
        self._last_seq = stored[-1].seq
        self.added += len(batch)

    def _write_or_replace(self, record: AnyRecord) -> None:
        try:
            self._write([record])
        except StoreFullError as error:
            self.problems.append(f"record {record.id}: {error.message}")
            data = {"id": record.id, "problem": error.message}
            self._write([Event(kind=TOO_LARGE, data=data, id=derive_id(record.id, TOO_LARGE))])

    def _record(self, item: Summary | HiddenMessages) -> AnyRecord | None:
        """Return the record of an item; None if it would change nothing."""
        if isinstance(item, Summary):
            first = self.seqs.get(item.first_kept or "")
            after = self._last_seq + len(self._batch) + 2  # after the summary itself
            compaction = Compaction(
                id=item.id,
                strategy=item.strategy,
                first_kept_seq=after if first is None else first,
                summary=item.text,
                tokens_before=item.tokens_before,
                read_files=item.read_files,
                modified_files=item.modified_files,
                timestamp=item.timestamp,
            )
            return _with_extra(compaction, item.extra)
        deletes = {self.seqs[hidden_id] for hidden_id in item.ids if hidden_id in self.seqs}
        restores: set[int] = set()
        if not item.extra:
            if not isinstance(item, _HiddenEarly):
                restores = self._hidden - deletes  # that branch is active again in the file
            deletes -= self._hidden
            self._hidden = (self._hidden - restores) | deletes
            if not deletes and not restores:
                return None
        tombstone = Tombstone(
            id=item.id, deletes=tuple(sorted(deletes)), restores=tuple(sorted(restores)), timestamp=item.timestamp
        )
        return _with_extra(tombstone, item.extra or {DERIVED_KEY: True})


def _with_extra(record: Compaction | Tombstone, extra: dict[str, Any]) -> AnyRecord:
    """Return the record with additional keys."""
    return from_object({**msgspec.to_builtins(record), **extra}) if extra else record
