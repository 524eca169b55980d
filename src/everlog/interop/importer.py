"""Bring foreign sessions into a store, and find them on the disk.

Every record has an id that follows from its source, and a session is found again by its name in
its dialect. So importing twice adds nothing, a file that has grown adds what is new, and a run
that was cut short is taken up where it stopped. The source is never changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, FormatError, StoreFullError
from everlog.interop.formats.format_types import (
    DERIVED,
    LONGEST,
    Format,
    Hidden,
    Item,
    Line,
    Lost,
    Read,
    Summary,
    kept,
    made_id,
)
from everlog.log.line_codec import extended, from_object
from everlog.log.metadata_changes import is_name
from everlog.model import (
    SETTABLE,
    AnyRecord,
    Compaction,
    Damaged,
    Event,
    Message,
    Meta,
    Tombstone,
)
from everlog.ports import Store

HEAD = 64 * 1024  # bytes by which a file is recognised
BATCH_BYTES = 4_000_000  # of one write, about
BATCH = 500  # records of one write
CHUNK = 1 << 20
_RECORDS = (Message, Event, Meta)
TOO_LARGE = "import.too_large"  # event: stands for a record that no line of ours can hold
ENDINGS = (".jsonl", ".json")
_PART = re.compile(r"_part[0-9]+$")
_BESIDE = ("subagents", "tool-results")  # folders of a session: what is in them belongs to it


class Imported(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What became of one source."""

    path: str
    id: str | None = None
    format: str = ""
    records_in: int = msgspec.field(default_factory=lambda: 0)  # lines
    records_out: int = msgspec.field(default_factory=lambda: 0)  # that the session has of them
    added: int = msgspec.field(default_factory=lambda: 0)  # by this run
    lost: tuple[str, ...] = msgspec.field(default_factory=lambda: ())
    children: tuple[Imported, ...] = ()
    problem: str = ""  # why nothing was imported


# --- on the disk ----------------------------------------------------------------------------


class FileSource:
    """A transcript on the disk with everything that lies beside it under its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.rpartition(".")[0]
        self.modified = int(path.stat().st_mtime * 1000)

    def paths(self) -> Sequence[str]:
        """The transcript, its parts, its metadata file, and what is in the folder of its name."""
        folder = self.path.parent
        own = [self.path.name]
        parts = (one.name for one in folder.glob(f"{_literal(self.name)}_part*{self.path.suffix}"))
        own += sorted(parts, key=lambda name: (len(name), name))
        beside = f"{self.name}.meta.json"
        own += [beside] if (folder / beside).is_file() else []
        deeper = sorted((folder / self.name).rglob("*")) if (folder / self.name).is_dir() else []
        own += [
            one.relative_to(folder).as_posix()
            for one in deeper
            if one.is_file() and not one.is_symlink()
        ]
        return own

    def lines(self, path: str) -> Iterator[Line]:
        """The lines of one file. Of one that is far too long only the beginning is given."""
        with (self.path.parent / path).open("rb") as opened:
            rest, start = b"", 0
            while chunk := opened.read(CHUNK):
                pieces = (rest + chunk).split(b"\n")
                rest = pieces.pop()
                for piece in pieces:
                    yield Line(start, piece)
                    start += len(piece) + 1
                if len(rest) > LONGEST:
                    skipped = _to_newline(opened)
                    yield Line(start, rest, ended=skipped >= 0)
                    start, rest = opened.tell(), b""
            if rest:
                yield Line(start, rest, ended=False)

    def read(self, path: str) -> bytes:
        """A whole file."""
        return (self.path.parent / path).read_bytes()


def _to_newline(opened: Any) -> int:
    """Go behind the next newline; -1 if there is none."""
    while chunk := opened.read(CHUNK):
        at: int = chunk.find(b"\n")
        if at >= 0:
            opened.seek(at + 1 - len(chunk), os.SEEK_CUR)
            return at
    return -1


def _literal(name: str) -> str:
    """A name as a pattern that matches just itself."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files that may be transcripts, in the given files and folders.

    Parts, metadata files and what lies in a session's own folder are found with their session.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(one for one in folders if one not in _BESIDE)
            for name in sorted(names):
                stem, dot, ending = name.rpartition(".")
                if dot + ending not in ENDINGS or name.endswith(".meta.json"):
                    continue
                is_part = _PART.search(stem) and f"{_PART.sub('', stem)}.{ending}" in names
                if not is_part and not os.path.islink(os.path.join(folder, name)):
                    found.append(Path(folder, name))
    return found


def recognise(path: Path, dialects: Sequence[Format]) -> Format | None:
    """The dialect of a file, by what is in it."""
    with path.open("rb") as opened:
        head = opened.read(HEAD)
    return next((one for one in dialects if one.recognises(path.name, head)), None)


# --- into a store ---------------------------------------------------------------------------


def import_files(
    port: Store,
    files: Sequence[Path],
    dialects: Sequence[Format],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Imported]:
    """Import each file that one of the dialects recognises; others are told as such."""
    for number, file in enumerate(files, 1):
        try:
            dialect = recognise(file, dialects)
            if dialect is None:
                raise FormatError("not a session of a format that is known")
            yield replace(bring(port, dialect.NAME, dialect.read(FileSource(file))), path=str(file))
        except EverlogError as error:
            yield Imported(path=str(file), problem=str(error))
        except OSError as error:
            yield Imported(path=str(file), problem=error.strerror or str(error))
        if progress is not None:
            progress(number, len(files))


def bring(port: Store, dialect: str, read: Read, parent: str | None = None) -> Imported:
    """Import one session, with those of the agents that it asked."""
    session = _session(port, dialect, read)
    stored = Stored(port, session)
    facts = {key: value for key, value in read.facts.items() if key not in SETTABLE}
    if parent is not None:
        facts["parent"] = {**facts.get("parent", {}), "id": parent}
    if facts:
        stored.add(Meta(set=facts, id=made_id(read.name, repr(sorted(facts.items())))))
    for item in in_time(read.name, read.items):
        stored.add(item)
    stored.flush()
    children = tuple(bring(port, dialect, child, session) for child in read.children)
    return Imported(
        path=read.name,
        id=session,
        format=dialect,
        records_in=read.lines,
        records_out=sum(item.id in stored.seqs or isinstance(item, Hidden) for item in read.items),
        added=stored.added,
        lost=(*map(_told, read.lost), *stored.lost),
        children=children,
    )


def in_time(name: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items, each branch that was left hidden before the first summary that came after it.

    Otherwise it would look as if something had been deleted that the summary tells of.
    """
    left = {
        one for item in items if isinstance(item, Hidden) and not item.extra for one in item.ids
    }
    early: list[str] = []
    for item in items:
        if isinstance(item, Summary) and early:
            made = made_id(name, f"left before {item.id}: {' '.join(early)}")
            yield _Early(id=made, ids=tuple(early), timestamp=item.timestamp)
            early = []
        if item.id in left:
            early.append(item.id)
        yield item
    if not left:  # what an earlier import hid is shown again
        made = made_id(name, f"nothing is hidden in {len(items)}")
        yield Hidden(id=made, ids=())


def _told(lost: Lost) -> str:
    return f"{lost.path}, bytes {lost.start} to {lost.end}: {lost.problem}"


def _session(port: Store, dialect: str, read: Read) -> str:
    """The session that the source was imported to, or a new one.

    Its key is its name in its dialect, which no other source has. A key and aliases that it has
    itself become aliases, as far as they are free: a session of ours may hold them already, and
    what is imported never goes into that one.
    """
    name = f"{dialect}:{read.name}"
    if not is_name(name):
        raise FormatError(f"not a name for a session: {name[:60]!r}")
    facts = {key: value for key, value in read.facts.items() if key in SETTABLE}
    facts.pop("model", None)  # that of its answers; nobody chose it
    given = (facts.pop("key", ""), *facts.pop("aliases", ()))
    own = [one for one in dict.fromkeys(given) if is_name(one) and _is_free(port, one)]
    facts |= {"key": name, "aliases": own, "source": facts.get("source", dialect)}
    return port.create(facts, unless_held=True, at=read.created or None).id


def _is_free(port: Store, name: str) -> bool:
    try:
        return name not in port.metadata(port.resolve(name)).names
    except EverlogError:  # nobody's, or like the beginning of some ids
        return True


class _Early(Hidden, frozen=True, kw_only=True):
    """Some of what is hidden, told before the rest."""


class Stored:
    """The session that is imported to, and which records it has already."""

    def __init__(
        self,
        port: Store,
        session: str,
        also: Callable[[AnyRecord], str] = lambda record: "",
    ) -> None:
        """`also` gives another id by which a record is known."""
        self._port = port
        self._session = session
        self.seqs: dict[str, int] = {}  # by id
        self._head = 0
        self._hidden: set[int] = set()  # by an earlier import, since they were on no branch
        for entry in port.read(session):
            self._head = max(self._head, entry.seq or 0)
            if isinstance(entry, Damaged):
                continue
            for name in (entry.id, also(entry)):
                if name:
                    self.seqs[name] = entry.seq
            if isinstance(entry, Event) and entry.kind == TOO_LARGE:
                self.seqs[str(entry.data.get("id"))] = entry.seq  # it stands for that record
            if isinstance(entry, Tombstone) and kept(entry, DERIVED):
                self._hidden = (self._hidden - set(entry.restores)) | set(entry.deletes)
        self._batch: list[AnyRecord] = []
        self._size = 0
        self.added = 0
        self.lost: list[str] = []

    def add(self, item: Item | Meta) -> None:
        """Store an item unless it is there."""
        if item.id in self.seqs:
            return
        if len(self._batch) >= BATCH or self._size >= BATCH_BYTES:
            self.flush()
        record = item if isinstance(item, _RECORDS) else self._record(item)
        if record is None:
            return
        self._batch.append(record)
        self.seqs[item.id] = self._head + len(self._batch)
        self._size += len(record.line) or 1_000

    def flush(self, keep: dict[str, Any] | None = None) -> None:
        """Write what is gathered; `keep` are further keys of the last record."""
        batch, self._batch, self._size = self._batch, [], 0
        if not batch:
            return
        if keep is not None:
            batch[-1] = extended(batch[-1], keep)
        try:
            self._write(batch)
        except StoreFullError:
            for record in batch:  # one of them is too long for a line of ours
                self._write_or_tell(record)

    def _write(self, batch: list[AnyRecord]) -> None:
        stored = self._port.append(self._session, batch, expected_seq=self._head)
        self._head = stored[-1].seq
        self.added += len(batch)

    def _write_or_tell(self, record: AnyRecord) -> None:
        try:
            self._write([record])
        except StoreFullError as error:
            self.lost.append(f"record {record.id}: {error.message}")
            data = {"id": record.id, "problem": error.message}
            self._write([Event(kind=TOO_LARGE, data=data, id=made_id(record.id, TOO_LARGE))])

    def _record(self, item: Summary | Hidden) -> AnyRecord | None:
        """The record of an item; None if it says nothing that is not known."""
        if isinstance(item, Summary):
            first = self.seqs.get(item.first_kept or "")
            after = self._head + len(self._batch) + 2  # behind the summary itself
            made = Compaction(
                id=item.id,
                strategy=item.strategy,
                first_kept_seq=after if first is None else first,
                summary=item.text,
                tokens_before=item.tokens_before,
                read_files=item.read_files,
                modified_files=item.modified_files,
                timestamp=item.timestamp,
            )
            return _with(made, item.extra)
        deletes = {self.seqs[one] for one in item.ids if one in self.seqs}
        back: set[int] = set()
        if not item.extra:
            if not isinstance(item, _Early):
                back = self._hidden - deletes  # the file took that branch up again
            deletes -= self._hidden
            self._hidden = (self._hidden - back) | deletes
            if not deletes and not back:
                return None
        hidden = Tombstone(
            id=item.id,
            deletes=tuple(sorted(deletes)),
            restores=tuple(sorted(back)),
            timestamp=item.timestamp,
        )
        return _with(hidden, item.extra or {DERIVED: True})


def _with(record: Compaction | Tombstone, extra: dict[str, Any]) -> AnyRecord:
    """A record with keys that are not ours."""
    return from_object({**msgspec.to_builtins(record), **extra}) if extra else record
