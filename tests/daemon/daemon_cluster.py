"""Several daemons on one database, and what must hold of the sessions that they shared."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import httpx2
from msgspec.structs import replace

import everlog
from everlog.app import open_store
from everlog.model import Event, Message
from everlog.settings import PostgresSettings, Settings
from tests.daemon.running_daemon import FAST, Daemon, until
from tests.stores.postgres.server import Server

LEASE = 4.0  # seconds
_schemas = count(1)


class Sent(NamedTuple):
    """A message that a daemon has taken."""

    session: str
    text: str
    run: str
    daemon: int


class Many:
    """Daemons with roots of their own on one schema of a database."""

    def __init__(self, server: Server, path: Path, more: str = "", lease: float = LEASE) -> None:
        self.server = server
        self.schema = f"many_{os.getpid()}_{next(_schemas)}"
        self._path = path
        self._config = (
            FAST.partition("[[cron.jobs]]")[0]
            + f'[postgres]\nschema = "{self.schema}"\nlease_seconds = {lease}\nwait_seconds = 2\n'
            + more
        )
        self.daemons: list[Daemon] = []

    def start(self, number: int = 1) -> list[Daemon]:
        """So many more daemons."""
        for _ in range(number):
            root = self._path / f"root{len(self.daemons)}"
            made = Daemon(root, "127.0.0.1", self.server.url, config=self._config)
            assert made.address, made.said
            self.daemons.append(made)
        return self.daemons

    def close(self) -> None:
        """Stop those that run, and drop what they made."""
        for one in self.daemons:
            one.stop()
        with self.server.connect() as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")

    @contextmanager
    def store(self) -> Iterator[everlog.Store]:
        """The sessions as another process finds them."""
        settings = replace(Settings(), postgres=PostgresSettings(schema=self.schema))
        with open_store(self.server.url, create=True, settings=settings) as made:
            yield made

    def await_rest(self, seconds: float = 60) -> None:
        """Wait until nothing is left to do in any session."""
        with self.store() as store:
            until(lambda: not store.list(unfinished=True, limit=1), seconds)

    def turns(self) -> list[int]:
        """How many turns each daemon has run."""
        counts = []
        for one in self.daemons:
            with one.client() as client:
                counts.append(client.health()["turns"])
        return counts


async def send_all(
    daemons: Sequence[Daemon], sessions: int, texts: Sequence[str], *, ready: int | None = None
) -> list[Sent]:
    """Say all texts in each of many new sessions, each to another daemon, in order per session.

    With `ready`, only until so many were taken; a daemon that is gone is left out from then on.
    """
    taken: list[Sent] = []
    # A connection that is kept may be hung up just as it is used again.
    once = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(trust_env=False, timeout=120, limits=once) as http:

        async def ask(which: int, path: str, said: object) -> httpx2.Response:
            daemon = daemons[which % len(daemons)]
            return await http.post(f"{daemon.address}{path}", json=said, headers=daemon.bearer)

        async def talk(number: int) -> None:
            made = await ask(number, "/api/sessions", {})
            session = made.json()["id"]
            for at, text in enumerate(texts):
                which = (number + at) % len(daemons)
                path = f"/api/sessions/{session}/messages?wait=false"
                answer = await ask(which, path, {"content": text})
                while answer.status_code == 429:
                    await asyncio.sleep(0.05)
                    answer = await ask(which, path, {"content": text})
                assert answer.status_code == 202, answer.text
                taken.append(Sent(session, text, answer.json()["runId"], which))

        at_once = asyncio.Semaphore(20)

        async def in_turn(number: int) -> None:
            async with at_once:
                await talk(number)

        talking = [asyncio.create_task(in_turn(number)) for number in range(sessions)]
        if ready is None:
            await asyncio.gather(*talking)
        else:
            while len(taken) < ready:
                await asyncio.sleep(0.005)
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)
    return taken


def check(store: everlog.Store, sent: Sequence[Sent], *, interrupted: bool = False) -> Counter[str]:
    """What must hold of every session: each message once and in order, each turn with one end.

    Returns how the turns ended. Without `interrupted`, all of them must have an answer.
    """
    ends: Counter[str] = Counter()
    for session in {one.session for one in sent}:
        own = store.session(session)
        mine = [one for one in sent if one.session == session]
        records = own.records()
        assert [one.seq for one in records] == list(range(1, len(records) + 1))
        said = own.messages()
        asked = [one.run_id for one in said if one.role == "user"]
        assert asked == [one.run for one in mine], "each message once, in the order of sending"
        calls = Counter(call.id for one in said for call in one.tool_calls)
        results = Counter(one.tool_call_id for one in said if one.tool_call_id)
        assert calls == results, "no call without its result, and none with two"
        for one in mine:
            ended = [
                record.data.get("stop", record.kind)
                for record in records
                if isinstance(record, Event)
                and record.kind in ("turn_end", "turn_interrupted")
                and record.data.get("runId") == one.run
            ]
            assert len(ended) == 1, f"{one.text!r} ended {ended}"
            ends[ended[0]] += 1
            answers = _answers(said, one.run)
            assert len(answers) == 1 if ended == ["end"] else len(answers) <= 1
            if ended == ["end"] and one.text.startswith("!say "):
                assert answers[0].text == one.text.removeprefix("!say ")
        assert not own.metadata.unfinished and own.verify() == ()
    if not interrupted:
        assert set(ends) == {"end"}, ends
    return ends


def _answers(said: Sequence[Message], run: str) -> list[Message]:
    """What the agent said at the end of a turn: between its input and the next one."""
    place = next(at for at, one in enumerate(said) if one.run_id == run and one.role == "user")
    found: list[Message] = []
    for one in said[place + 1 :]:
        if one.role == "user":
            break
        if one.role == "assistant" and not one.tool_calls:
            found.append(one)
    return found
