"""The store port on a directory of another program's sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

from msgspec.structs import replace

from everlog.errors import (
    ConflictError,
    EverlogError,
    FormatError,
    InvalidIdError,
    NotFoundError,
    UnsupportedError,
)
from everlog.interop.foreign.foreign_catalogue import Progress
from everlog.interop.foreign.foreign_files import Files
from everlog.interop.foreign.listing_page import page
from everlog.interop.foreign.mirrored_session import Mirror, working_directory
from everlog.interop.foreign.session_opener import Opening, key_of
from everlog.interop.foreign.transcript_files import ENDING
from everlog.interop.formats.live_format import Added, LiveFormat
from everlog.log.append_rules import lasting, prepare
from everlog.model import AnyRecord, Damaged, Entry, Metadata, Part, pair
from everlog.ports import (
    Chats,
    Filter,
    Lease,
    Order,
    Page,
    Query,
    Results,
    SessionRow,
    UsageReport,
    days_of,
    matcher,
)
from everlog.stores import usage_query
from everlog.stores.file import disk

PREFIX = 6  # characters of an id that serve for it
_MAKING = "the making of sessions"
IMPORT = "import it (everlog sessions import) and go on in a store of ours"


class LiveLease:
    """The right to run a turn on a session in foreign files."""

    def __init__(self, session: str, inner: Lease) -> None:
        self.session = session
        self.inner = inner

    def release(self) -> None:
        """Give it back."""
        self.inner.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class ForeignStore(Opening):
    """Sessions of other programs, each in its own format, in one directory."""

    # --- writing

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session, as a file that its program takes for one of its own."""
        given = {key: value for key, value in (facts or {}).items() if value is not None}
        with self._flock(_MAKING):
            held = self._holder(str(given.get("key") or "")) if unless_held else None
            if held is not None:
                return self.metadata(held)
            if len(self._dialects) != 1:
                raise UnsupportedError(
                    "a new session needs a format", hint="name it with --dialect, as --dialect pi"
                )
            return self._begin(self._dialects[0], given)

    def made(self, session: str, dialect: str, key: str) -> str:
        """The session of this very id, made in one of several formats if there is none."""
        with self._flock(_MAKING):
            if self._catalogue.find(session) is not None:
                return session
            chosen = next(one for one in self._dialects if dialect == one.NAME)
            return self._begin(chosen, {"key": key}).id

    def _begin(self, dialect: LiveFormat, facts: Mapping[str, Any]) -> Metadata:
        given = {"cwd": working_directory(), **facts}
        agent, sender = given.get("agent", "main"), given.get("sender", "user")
        chats = self.chats(pair(agent, sender))
        given.setdefault("chat", chats.highest + 1 if chats else 1)
        folder = self._folder(dialect, given["cwd"])
        begun = dialect.begin(given, self._now(), lambda stem: self._taken(folder, stem))
        if folder:
            with disk.errors_mapped(f"making {folder}"):
                (self._root / folder).mkdir(mode=0o700, exist_ok=True)
        files = Files(self._root, folder, begun.stem, dialect, self.reports.append)
        files.make(begun.added)
        self._catalogue.made(folder, begun.stem, dialect)
        return self.metadata(begun.name)

    def _folder(self, dialect: LiveFormat, cwd: str) -> str:
        """Where a new session goes: into the folder of its project, where there are such."""
        place: Callable[[str], Sequence[str]] | None = getattr(dialect, "project_directory", None)
        if place is None:
            return ""
        folders = {row.folder for row in self._catalogue.sessions().values()}
        nested = "" not in folders if folders else self._root.name == "projects"
        return place(cwd)[0] if nested else ""

    def _taken(self, folder: str, stem: str) -> bool:
        rows = self._catalogue.sessions().values()
        return os.path.lexists(self._root / folder / f"{stem}{ENDING}") or any(
            row.folder == folder and row.stem.startswith(f"{stem}_") for row in rows
        )

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records: in the session's own format, durably, and in the mirror."""
        kept = lasting(records)
        if not kept:
            self._row(session)
            return []
        prepared = prepare(kept, self._now, self._new_uuid)
        with self._held(session) as mirror:
            if lease is not None:
                _check_lease(session, lease)
            stem = mirror.files.stem
            stored = mirror.append(prepared, expected_seq, no_marker_after, self.reports.append)
        if mirror.files.stem != stem:
            self._catalogue.moved()
        return stored

    def update(
        self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False
    ) -> Metadata:
        """Change metadata, where the session's format keeps it."""
        if changes:
            with self._held(session) as mirror:
                stem = mirror.files.stem
                mirror.change(dict(changes))
            if mirror.files.stem != stem:
                self._catalogue.moved()
        return self.metadata(session)

    def put(self, session: str, make: Callable[[Mirror], Added]) -> None:
        """Do something in a session's files that only its own format knows."""
        with self._held(session) as mirror:
            mirror.put(make(mirror))

    def reclaim(self, session: str) -> int:
        """Take out the lines that the session's program skips, after a copy was kept of them;
        returns the bytes that are free now."""
        with self.lease(session), self._held(session) as mirror:
            reclaimed = getattr(mirror.dialect, "reclaimed", None)
            if reclaimed is None:
                raise UnsupportedError(
                    f"a {mirror.dialect.NAME} session has nothing to reclaim",
                    hint="only PicoClaw's have lines that are skipped",
                )
            before, was = mirror.files.content()
            beside = mirror.files.where(session).beside
            after, meta, removed = reclaimed(before, beside, self._now())
            if not removed:
                return 0
            self._keep([self._root / path for path in mirror.files.paths()])
            # As PicoClaw does it: a crash in between shows the lines again and loses none.
            mirror.put(Added(files={".meta.json": meta}))
            mirror.files.overwrite(after, was)
            mirror.put(Added())
            return len(before) - len(after)

    def overwrite(self, session: str, transcript: bytes, beside: bytes) -> None:
        """Put another history in the place of a session's own: what its program calls setting."""
        with self._held(session) as mirror:
            mirror.files.replace(Added(files={".meta.json": beside}))
            mirror.files.overwrite(transcript)
            mirror.put(Added())

    def delete(self, session: str) -> int:
        """Remove a session's files, and its mirror."""
        with self.lease(session), self._held(session) as mirror:
            parts = mirror.files.remove()
        with self._guard:
            self._open.pop(session, None)
        self._mirror.delete(mirror.session)
        self._catalogue.moved()
        return parts

    # --- reading

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Records above a seq, as the file says them now."""
        mirror = self._level(session)
        return map(mirror.plain, self._mirror.read(mirror.session, after=after, limit=limit))

    def tail(self, session: str) -> Iterator[Entry]:
        """All records, newest first, lazily."""
        mirror = self._level(session)
        return map(mirror.plain, self._mirror.tail(mirror.session))

    def metadata(self, session: str) -> Metadata:
        """What the file says of the session, and what we know of its turns."""
        self._row(session)
        mirror = self._level(session)
        row = self._catalogue.current(session)
        known = mirror.metadata
        if row is None:  # an agent's transcript, which is not listed by itself
            parent = session.partition(":")[0]
            return replace(known, id=session, key=None, extra={**known.extra, "parent": parent})
        agents = [f"{session}:{stem}" for _, stem in self._children(row)]
        listed = row.listed(session).metadata
        return replace(
            listed,
            uptime_secs=known.uptime_secs,
            metrics=known.metrics,
            spent=known.spent,
            spending=known.spending,
            run=known.run,
            waiting=known.waiting,
            through=known.through,
            extra={**listed.extra, "agents": agents} if agents else listed.extra,
        )

    def list(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Sessions, newest first."""
        if limit < 1:
            raise FormatError(f"a listing needs a limit of at least 1, not {limit}")
        if which.unfinished:
            return self._unfinished(which, limit, cursor, order)
        matches = matcher(which)
        sessions = self._catalogue.sessions().items()
        rows = [one for name, row in sessions if matches(one := row.listed(name))]
        return page(rows, limit, cursor, order)

    def lists(self, session: str) -> bool:
        """Whether the last listing knew a session of this id."""
        return self._catalogue.knows(session)

    def _unfinished(self, which: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        """Only a mirror knows of turns; few are unfinished."""
        found = self._mirror.list(Filter(unfinished=True), limit=1_000_000)
        names = {key_of(row): one for one, row in self._catalogue.sessions().items()}
        matches = matcher(which)
        rows: dict[str, SessionRow] = {}
        for one in found:
            name = names.get(one.metadata.key or "")
            if name is not None:
                row = SessionRow(self.metadata(name), one.bytes, one.parts)
                rows |= {name: row} if matches(row) else {}
        return page(list(rows.values()), limit, cursor, order)

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Sessions in which something was said; what is new in their files is taken in first."""
        self.catch_up(progress)
        return self._named(self._mirror.search, query)

    def recall(self, query: Query, now: int) -> Results:
        """Sessions that a message is about, as far as they are taken in."""
        return self._named(lambda asked: self._mirror.recall(asked, now), query)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Mirror what is new in the files, and take it in."""
        self._level_all(progress)
        return self._mirror.catch_up()

    def _level_all(self, progress: Progress | None) -> None:
        """Mirror what is new in the files."""
        rows = self._catalogue.sessions()
        sessions = [one for one, row in rows.items() if self._caught.get(one) != row.stamps]
        for done, session in enumerate(sessions, 1):
            try:
                self._level(session)
                self._caught[session] = rows[session].stamps
            except EverlogError as error:  # one bad file must not hide the others
                self.reports.append(f"{session} cannot be searched: {error.message}")
            if progress is not None:
                progress(done, len(sessions))

    def usage(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """What sessions spent, as far as they are mirrored; `fresh` mirrors what is new first."""
        matches, days = matcher(replace(which, since=None)), days_of(which, until)
        if fresh:
            self._level_all(progress)
        mirrored = {one.metadata.key: one.metadata for one in self._mirror.list(limit=1_000_000)}
        found: list[Metadata] = []
        behind = 0
        for session, row in self._catalogue.sessions().items():
            listed = row.listed(session)
            if not matches(listed):
                continue
            known = mirrored.get(key_of(row))
            level = self._caught.get(session) == row.stamps
            if known is None or not (level or known.message_count >= listed.metadata.message_count):
                behind += 1
            if known is not None:
                data = listed.metadata
                found.append(replace(data, spent=known.spent, spending=known.spending))
        return replace(usage_query.used(found, days, spenders), behind=behind)

    def _named(self, ask: Callable[[Query], Results], query: Query) -> Results:
        """What is found in mirrors, under the ids of the sessions.

        Which sessions are in question is known here, and not to the mirrors: if not all that was
        found came with the first answer, it is asked for all, then for those that are shown.
        """
        asked = _anywhere(query)
        every = found = ask(asked)
        if found.total > len(found.results):
            every = ask(replace(asked, limit=found.total, hits=0))
        named = self._in_question(every, query)
        page = dict(list(named.items())[query.offset : query.offset + query.limit])
        if every is not found:
            others = frozenset(one.session for one in every.results if one.session not in page)
            found = ask(replace(asked, without=others))
        shown = [
            replace(one, session=row.id, title=row.metadata.title)
            for one in found.results
            if (row := page.get(one.session)) is not None
        ]
        return Results(tuple(shown), len(named))

    def _in_question(self, found: Results, query: Query) -> dict[str, SessionRow]:
        """Sessions by their mirrors, in the order of what was found."""
        names = {key_of(row): one for one, row in self._catalogue.sessions().items()}
        matches = matcher(replace(query.which, since=None))
        rows: dict[str, SessionRow] = {}
        for one in found.results:
            name = names.get(self._mirror.metadata(one.session).key or "")
            row = self._catalogue.find(name) if name is not None else None
            if name is None or row is None or name in query.without:
                continue
            if matches(listed := row.listed(name)):
                rows[one.session] = listed
        return rows

    def resolve(self, name: str) -> str:
        """The id behind an id, a key, an alias, or an unambiguous beginning of an id."""
        try:
            self._row(name)
            return name
        except (NotFoundError, InvalidIdError) as error:
            failure = error
        if (held := self._holder(name)) is not None:
            return held
        sessions = self._catalogue.sessions()
        if len(name) >= PREFIX:
            alike = [one for one in sessions if one.startswith(name)]
            if len(alike) == 1:
                return alike[0]
            if alike:
                raise ConflictError(
                    f"several sessions begin with {name}", hint="give more characters"
                )
        raise failure

    def _holder(self, name: str) -> str | None:
        """The session of this very id, key or alias."""
        sessions = self._catalogue.sessions()
        if name in sessions:
            return name
        held = (
            one for one, row in sessions.items() if name in (row.glance.key, *row.glance.aliases)
        )
        return next(held, None) if name else None

    def chats(self, thread: str) -> Chats | None:
        """The sessions of an agent and a sender, or of a key."""
        found = [
            ((row.glance.chat or 0, row.changed), one)
            for one, row in self._catalogue.sessions().items()
            if thread in (row.glance.key, row.listed(one).metadata.thread)
        ]
        if not found:
            return None
        (highest, _), newest = max(found)
        return Chats(newest, newest, highest)

    def lease(self, session: str) -> LiveLease:
        """The right to run a turn, at once or SessionBusyError."""
        return LiveLease(session, self._mirror.lease(self._opened(session).session))

    def paths(self, session: str) -> Sequence[Path]:
        """Where the files of a session are."""
        return [self._root / one for one in self._catalogue.files(self._row(session)).paths()]

    def beside(self, session: str) -> bytes | None:
        """What the session's program writes anew each time."""
        return self._catalogue.files(self._row(session)).where(session).beside

    @contextmanager
    def exclusively(self, what: str) -> Iterator[Path]:
        """Keep other processes of ours from doing the same; gives the directory of ours."""
        with self._flock(what):
            yield self._home

    def parts(self, session: str) -> tuple[Part, ...]:
        """The files of a session's transcript; only a mirror has seqs."""
        files = self._catalogue.files(self._row(session))
        return tuple(
            Part(files.part_name(number), size, None, None)
            for number, size in enumerate(files.sizes(), 1)
        )

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """What in the files is no record."""
        from everlog.interop.importer import FileSource  # noqa: PLC0415 - seldom asked

        row = self._row(session)
        dialect = next(one for one in self._dialects if row.dialect == one.NAME)
        with disk.errors_mapped(f"reading {row.path}"):
            read = dialect.read(FileSource(self._root / row.path))
        return tuple(
            Damaged(file=one.path, start=one.start, end=one.end, problem=one.problem)
            for one in read.lost
        )

    # --- what these formats have no place for

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Not here."""
        _unsupported("a fork", "import it (everlog sessions import) and fork it there")

    def resume(self, session: str) -> Metadata:
        """Not here: its program goes on with the newest."""
        _unsupported("an older session made the current one", "name it where it is to go on")

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Not here."""
        _unsupported("a history that another session takes over", IMPORT)

    def repair(self, session: str) -> tuple[str, ...]:
        """Nothing: its program's lines are not ours to set right; an append ends a torn one."""
        self._row(session)
        return ()

    def close(self) -> None:
        """Tell the files of the turns that were run, and give back all descriptors."""
        for session, mirror in list(self._open.items()):
            if round(mirror.seconds) and getattr(mirror.dialect, "UPTIME", False):
                try:
                    self.update(session, {"uptimeSecs": round(mirror.seconds)})
                    mirror.seconds = 0.0
                except EverlogError as error:
                    self.reports.append(f"the uptime of {session} was not saved: {error.message}")
        self._mirror.close()
        self._catalogue.close()


def _anywhere(query: Query) -> Query:
    """A query without what only the files tell of a session."""
    return replace(query, which=Filter(since=query.which.since), without=frozenset(), offset=0)


def _check_lease(session: str, lease: Lease) -> None:
    inner = lease.inner if isinstance(lease, LiveLease) else None
    if lease.session != session or not getattr(inner, "held", False):
        raise ConflictError(f"the turn lease of session {session} is not held", session=session)


def _unsupported(what: str, hint: str) -> NoReturn:
    raise UnsupportedError(f"these files have no place for {what}", hint=hint)
