"""Sessions come and go: each in one transaction with its names, its row and its count.

What is counted and derived can be made anew from the log, in one transaction too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from everlog.errors import ConflictError, EverlogError, NotFoundError
from everlog.log.append_rules import Prepared, refuse_newer
from everlog.log.fold import Tally, apply, given_facts
from everlog.model import SCHEMA_VERSION, Meta, Metadata, Part, pair
from everlog.ports import SessionRow
from everlog.stores import session_names
from everlog.stores.postgres.append_statement import Appending, take
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.driver_errors import ConnectionLost, Duplicate
from everlog.stores.postgres.id_columns import name_of, session_of, sid_of, stripe_of
from everlog.stores.postgres.metadata_rows import Rows
from everlog.stores.postgres.name_claims import Claims, names_of
from everlog.stores.postgres.passage_search import Texts
from everlog.stores.postgres.record_reader import Reading
from everlog.stores.postgres.session_cache import Known
from everlog.stores.postgres.statements import load


class Making:
    """How sessions of one store are made, copied and removed."""

    def __init__(
        self,
        database: Database,
        *,
        rows: Rows,
        claims: Claims,
        texts: Texts,
        appending: Appending,
        reading: Reading,
        prepared: Callable[[Meta], Prepared],
    ) -> None:
        self._database = database
        self._rows = rows
        self._claims = claims
        self._texts = texts
        self._appending = appending
        self._reading = reading
        self._prepared = prepared
        self._sql = load("sessions", database.settings.schema)
        self._records = load("records", database.settings.schema)

    # --- making

    def create(self, session: str, given: dict[str, Any], *, unless_held: bool) -> Metadata:
        """An empty session, the current chat of its key or pair."""
        blank = Tally.fresh(session).metadata(1, 0)
        wanted = names_of(apply(blank, given))

        def work(link: Link) -> Metadata:
            self._claims.lock(link, wanted)
            holder = self._claims.holding(link)
            if unless_held and (held := holder(given.get("key", ""))):
                if held[0] == session:  # by an attempt that was lost
                    raise Duplicate(f"session {session} was made meanwhile", session=session)
                return self._rows.fold(link, held[0])[0].metadata
            claimed = given
            if session_names.changes_names(given):
                claimed = session_names.with_claims(given, blank, holder)
            numbered = session_names.numbered(claimed, blank, holder, self._claims.numbering(link))
            made = apply(blank, numbered)
            self._insert(link, made)
            self._enter(link, made)
            return made

        return self._made(session, work)

    def _made(self, session: str, work: Callable[[Link], Metadata]) -> Metadata:
        """Make a session, and find out whether it was made if the answer is lost."""
        try:
            return self._database.changing(work)
        except ConnectionLost as error:
            lost = error
        self._database.recheck()
        try:
            return self._found_or_made(session, work)
        except EverlogError as error:  # any other word would say that nothing was made
            raise ConnectionLost(
                f"whether session {session} was made is not known: {lost.message}",
                hint="look whether it is there before it is made again",
                session=session,
            ) from error

    def _found_or_made(self, session: str, work: Callable[[Link], Metadata]) -> Metadata:
        """The session of an attempt that was lost; where there is none, another attempt."""
        try:
            return self._found(session)
        except NotFoundError:
            pass
        try:
            return self._database.changing(work)
        except Duplicate:  # the first came through after all
            return self._found(session)

    def _found(self, session: str) -> Metadata:
        """A session that is there, though nobody has acknowledged that yet."""
        metadata = self._rows.row(session).metadata
        if not self._appending.acknowledge(session):
            raise NotFoundError(f"there is no session {session}", session=session)
        return metadata

    def _insert(self, link: Link, metadata: Metadata) -> None:
        link.execute(self._sql["insert_session"], {"sid": sid_of(metadata.id)})
        self._rows.insert(link, metadata)

    def _enter(self, link: Link, metadata: Metadata) -> None:
        """Give a session its names, and count it, in the stripe that is locked for them anyway."""
        self._claims.put(link, metadata, new=True)
        stripe = stripe_of(name_of(metadata.thread))
        link.execute(self._sql["count_session"], {"stripe": stripe, "more": 1})
        if metadata.name:
            self._texts.await_(link, sid_of(metadata.id), metadata.through.seq)

    # --- copying

    def fork(self, session: str, new: str, at: int | None) -> Metadata:
        """A new session with the records up to one."""
        sid = sid_of(session)

        def work(link: Link) -> Metadata:
            row, _ = self._rows.fold(link, session)
            source = row.metadata
            seq = source.through.seq if at is None else at
            if (
                at is not None
                and not link.execute(self._records["has"], {"sid": sid, "at": at}).fetchone()
            ):
                raise NotFoundError(
                    f"session {session} has no record {at}", session=session, seq=at
                )
            blank = Tally.fresh(new).metadata(1, 0)
            if source.through.seq:
                self._insert(link, blank)
                self._copy(link, session, new, seq)
            # Copying may take long: names are locked behind it.
            thread = pair(source.agent, source.sender)
            self._claims.lock(link, [thread])
            changes: dict[str, Any] = {"forkedFrom": {"id": session, "seq": seq}}
            # Where nothing was copied, or no birth, no record holds what it was made with.
            if not self._rows.has_birth(link, sid_of(new)):
                changes = given_facts(source) | changes
            # Names stay with the original; a copy is one more chat of its agent and sender.
            changes |= dict.fromkeys(("key", "aliases", "generations", "current"))
            changes |= dict.fromkeys(("promotedFrom", "promotedTo"))
            changes["chat"] = self._claims.numbering(link)(thread) + 1
            if source.through.seq:
                made = self._add(link, new, changes)
            else:
                made = apply(blank, changes)
                self._insert(link, made)
            self._enter(link, made)
            return made

        return self._made(new, work)

    def _copy(self, link: Link, session: str, new: str, at: int) -> None:
        sid, copy = sid_of(session), sid_of(new)
        values = {"sid": sid, "copy": copy, "at": at}
        if (
            not link.execute(self._records["copy"], values).rowcount
            and not link.execute(self._sql["exists"], {"sid": sid}).fetchone()
        ):
            raise NotFoundError(f"there is no session {session} any more", session=session)
        self.measure(link, copy, before=0)

    def _add(self, link: Link, new: str, changes: dict[str, Any]) -> Metadata:
        """The record that says whose copy it is, behind those that were copied."""
        values = {"sid": sid_of(new), "rids": []}
        link.execute(self._rows.sql["reset_listing"], values)
        known = Known(new)
        take(known, link.execute(self._records["state"], values, binary=True).fetchone())
        copied = self._rows.fold(link, new)[0].metadata
        if copied.newest_schema > SCHEMA_VERSION:
            refuse_newer(changes["forkedFrom"]["id"], copied.newest_schema)
        known.tally = Tally(copied)
        self._appending.write(link, known, self._prepared(Meta(set=changes)))
        metadata = known.metadata
        assert metadata is not None
        self._rows.put(link, SessionRow(metadata, known.bytes, known.part))
        return metadata

    def measure(self, link: Link, sid: UUID, before: int) -> list[Any]:
        """Count anew what a session's row says of its log; the parts as they are."""
        rows: list[Any] = link.execute(
            self._records["measured"], {"sid": sid}, binary=True
        ).fetchall()
        link.execute(self._records["drop_parts"], {"sid": sid})
        if not rows:
            return rows
        for part, size, first, last, _ in rows[:-1]:
            values = {"sid": sid, "part": part, "bytes": size, "first": first, "last": last}
            link.execute(self._records["put_part"], values)
        part, size, first, last, _ = rows[-1]
        values = {
            "sid": sid,
            "before": before,
            "head": last,
            "marker": max(row[4] for row in rows),
            "bytes": sum(row[1] for row in rows),
            "part": part,
            "part_bytes": size,
            "part_first": first,
        }
        if not link.execute(self._records["correct"], values).rowcount:
            raise ConflictError(
                f"session {session_of(sid)} went on meanwhile"
            )  # nobody held its row
        return rows

    def count_anew(self, session: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """Make what a session's rows say from its log; its parts before and behind that."""
        sid = sid_of(session)

        def work(link: Link) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
            row = link.execute(self._records["hold"], {"sid": sid}).fetchone()
            if row is None:
                raise NotFoundError(f"there is no session {session}", session=session)
            head, before = row[0], self._reading.parts_at(link, session)
            if head:
                self.measure(link, sid, head)
                link.execute(self._rows.sql["reset_listing"], {"sid": sid})
            listed, _ = self._rows.fold(link, session)
            self._rows.put(link, listed)
            self._claims.put(link, listed.metadata)
            return before, self._reading.parts_at(link, session)

        return self._database.changing(work, repeatable=True)

    # --- removing

    def delete(self, session: str, epoch: int) -> int:
        """A session is gone for everybody, by who holds its turn; how many parts it had."""
        sid = sid_of(session)

        def work(link: Link) -> int:
            values = {"sid": sid, "epoch": epoch}
            row = link.execute(self._sql["delete_session"], values).fetchone()
            if row is None:
                raise ConflictError(f"the turn lease of session {session} is not held")
            self._rows.drop(link, sid)
            self._claims.drop(link, sid)
            self._texts.drop(link, sid)
            stripe = stripe_of(sid.bytes)
            link.execute(self._sql["count_session"], {"stripe": stripe, "more": -1})
            return int(row[0])

        return self._database.changing(work)

    def clear(self) -> None:
        """Go on with deletions that were broken off."""
        for (sid,) in self._database.reading(
            lambda link: link.execute(self._sql["deleted"], binary=True).fetchall()
        ):
            self.remove(session_of(sid))

    def remove(self, session: str) -> None:
        """Remove the rows of a deleted session; broken off, `clear` goes on with it."""
        values = {"sid": sid_of(session)}

        def some(link: Link) -> bool:
            # Others may have removed it meanwhile, and somebody may have copied it in again.
            if link.execute(self._sql["hold_deleted"], values).fetchone() is None:
                return False
            if link.execute(self._records["drop_some"], values).rowcount:
                return True
            link.execute(self._records["drop_parts"], values)
            link.execute(self._sql["drop_session"], values)
            return False

        while self._database.changing(some, repeatable=True):
            continue
