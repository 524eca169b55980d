"""The calls: one method for each route."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from everlog.client import websocket
from everlog.client.error_decoding import failure
from everlog.errors import InvalidIdError, NotFoundError, SettingsError, StoreFailedError
from everlog.log.line_codec import clean
from everlog.log.usage_report import Reckoning
from everlog.model import AnyBlock
from everlog.ports import Results
from everlog.wire import responses
from everlog.wire.events import Error, MessageComplete, RunEvent

if TYPE_CHECKING:
    import httpx2
    from websockets.sync.connection import Connection

T = TypeVar("T")
Content = str | Sequence[AnyBlock | Mapping[str, Any]]

CALL_SECONDS = 30.0  # of a call that does not wait for a model
TURN_SECONDS = 3600.0


class Client:
    """The daemon of one root, over HTTP. Used from one thread at a time."""

    def __init__(self, address: str, token: str, *, seconds: float = CALL_SECONDS) -> None:
        import httpx2  # noqa: PLC0415 - 100 ms; whoever only wants the types does not need it

        self.address = address.rstrip("/")
        self._token = token
        self._seconds = seconds
        self._failed = httpx2.HTTPError
        self._hung_up = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
        self._http: httpx2.Client = httpx2.Client(
            base_url=self.address,
            headers={"Authorization": f"Bearer {token}"},
            verify=self.address.startswith("https:"),  # reading all certificates takes 30 ms
            trust_env=False,  # nothing on this machine goes through a proxy
        )

    @classmethod
    def of(cls, root: Path) -> Self:
        """The daemon that runs for a root; NotFoundError if none does."""
        nobody = NotFoundError(f"no daemon is running for {root}", hint="start one: everlog serve")
        try:
            if not _is_held(root / "run" / "daemon.lock"):
                raise nobody  # whoever listens at a dead daemon's address must not get the token
            client = cls(_read(root / "run" / "address"), _read(root / "run" / "token"))
        except FileNotFoundError:
            raise nobody from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"{root / 'run'} cannot be used: {error}") from error
        try:
            client.health()
        except StoreFailedError as error:
            client.close()
            raise nobody from error
        return client

    # --- sessions

    def sessions(
        self, *, limit: int = 50, cursor: str | None = None, **which: str | None
    ) -> responses.Listing:
        """Sessions, last active first; `which`: agent, sender, source, since, title."""
        answer = self._ask(
            "GET", "/api/sessions", query={"limit": limit, "cursor": cursor, **which}
        )
        further = parse_qs(urlsplit(answer.links.get("next", {}).get("url", "")).query)
        return responses.Listing(
            sessions=msgspec.json.decode(answer.content, type=list[responses.Summary]),
            total=int(answer.headers["x-total-count"]),
            next=further.get("cursor", [None])[0],
        )

    def create(self, *, check: bool = False, **facts: str) -> responses.Named:
        """Make a session: name, systemPrompt, agent, sender, model, as `system_prompt` too.

        With `check` a model that the daemon cannot use is refused; else its turns would fail.
        """
        query = {"check": check or None}
        return self._call("POST", "/api/sessions", responses.Named, _camel(facts), query=query)

    def session(self, session_id: str) -> responses.Whole:
        """Live messages and metadata."""
        return self._call("GET", _at(session_id), responses.Whole)

    def update(
        self, session_id: str, *, check: bool = False, **changes: str | None
    ) -> responses.Summary:
        """Change name, model or system_prompt; `check` as for a new session."""
        query = {"check": check or None}
        return self._call("PATCH", _at(session_id), responses.Summary, _camel(changes), query=query)

    def delete(self, session_id: str) -> None:
        """Remove a session for good."""
        self._call("DELETE", _at(session_id), None)

    def messages(
        self, session_id: str, *, after: int = 0, limit: int = 100, everything: bool = False
    ) -> responses.History:
        """A page of a session's messages, or of its log."""
        query = {"after": after, "limit": limit, "all": everything or None}
        return self._call("GET", _at(session_id, "messages"), responses.History, query=query)

    def context(self, session_id: str) -> responses.Prepared:
        """What the model would be sent."""
        return self._call("GET", _at(session_id, "context"), responses.Prepared)

    def fork(self, session_id: str, at: int | None = None) -> responses.Named:
        """A new session that shares everything up to a record."""
        return self._call("POST", _at(session_id, "fork"), responses.Named, {"at": at})

    def rewind(self, session_id: str, to_seq: int) -> responses.Rewound:
        """Go back to a message."""
        return self._call("POST", _at(session_id, "rewind"), responses.Rewound, {"toSeq": to_seq})

    def delete_message(self, session_id: str, seq: int) -> responses.Deleted:
        """Hide a message."""
        return self._call("DELETE", _at(session_id, "messages", str(seq)), responses.Deleted)

    def restore_message(self, session_id: str, seq: int) -> responses.Restored:
        """Show it again."""
        where = _at(session_id, "messages", str(seq), "restore")
        return self._call("POST", where, responses.Restored)

    # --- turns

    def send(
        self,
        session_id: str,
        content: Content,
        *,
        cwd: str | None = None,
        seconds: float = TURN_SECONDS,
    ) -> responses.Ran:
        """Say something and wait for the end of the turn."""
        said = {"content": content, "cwd": cwd}
        return self._call("POST", _at(session_id, "messages"), responses.Ran, said, seconds=seconds)

    def submit(
        self, session_id: str, content: Content, *, cwd: str | None = None
    ) -> responses.Accepted:
        """Say something; it is kept when this returns, and will be answered."""
        said = {"content": content, "cwd": cwd}
        where = _at(session_id, "messages")
        return self._call("POST", where, responses.Accepted, said, query={"wait": False})

    def stream(
        self, session_id: str, content: Content, *, cwd: str | None = None
    ) -> Iterator[RunEvent]:
        """Say something and get the events of its turn, to the last one."""
        with websocket.connect(self.address, self._token) as socket:
            websocket.subscribe(socket, session_id, None)
            run = self.submit(session_id, content, cwd=cwd).run_id
            for event in websocket.told(socket):
                if event.run_id == run:
                    yield event
                    if isinstance(event, MessageComplete | Error):
                        return

    def events(self, session_id: str, after: int | None = 0) -> Iterator[RunEvent]:
        """What was said after a seq, then everything as it happens; None: only the latter."""
        with websocket.connect(self.address, self._token) as socket:
            websocket.subscribe(socket, session_id, after)
            yield from websocket.told(socket)

    def connect(self) -> Connection:
        """An open WebSocket, for the functions of `everlog.client.websocket`."""
        return websocket.connect(self.address, self._token)

    def cancel(self, session_id: str, run_id: str = "") -> bool:
        """Stop a turn, or take back a message that waits; whether there was one."""
        where = _at(session_id, "cancel")
        return self._call("POST", where, responses.Cancelled, {"runId": run_id}).cancelled

    def compact(self, session_id: str, *, focus: str = "") -> responses.Compacted:
        """Summarise the older part of a session."""
        where = _at(session_id, "compact")
        return self._call(
            "POST", where, responses.Compacted, {"focus": focus}, seconds=TURN_SECONDS
        )

    def inbound(
        self, context: Mapping[str, Any], text: str, *, wait: bool = True, **how: Any
    ) -> responses.Received:
        """A channel's message; `how`: session_key, new_chat, cwd, system."""
        said = {"context": dict(context), "text": text, **how}
        query = {"wait": wait}
        return self._call(
            "POST", "/api/inbound", responses.Received, said, query=query, seconds=TURN_SECONDS
        )

    # --- the daemon

    def cron(self) -> list[dict[str, Any]]:
        """Every job and how it has fared."""
        return self._call("GET", "/api/cron", list[dict[str, Any]])

    def pause(self, job: str) -> None:
        """Let a job rest."""
        self._call("POST", f"/api/cron/{quote(job, safe='')}/pause", responses.Done)

    def resume(self, job: str) -> None:
        """Let a job run at its times again."""
        self._call("POST", f"/api/cron/{quote(job, safe='')}/resume", responses.Done)

    def run(self, job: str) -> str:
        """Run a job now; the session it runs in."""
        done = self._call("POST", f"/api/cron/{quote(job, safe='')}/run", responses.Done)
        return done.session_id or ""

    # --- what was said, and what was learnt

    def search(
        self, text: str, *, limit: int = 20, offset: int = 0, **which: str | None
    ) -> Results:
        """Sessions in which something was said, the best first; `offset` passes over some.

        `which`: agent, sender, source, title, role, since, until.
        """
        query = {"q": text, "limit": limit, "offset": offset, **which}
        return self._call("GET", "/api/search", Results, query=query)

    def usage(
        self, session_id: str | None = None, *, by: str | None = None, **which: str | None
    ) -> Reckoning:
        """What sessions spent, or one of them, over time.

        `which`: since, until, and of all sessions agent, sender, source.
        """
        where = "/api/usage" if session_id is None else _at(session_id, "usage")
        return self._call("GET", where, Reckoning, query={"by": by, **which})

    def memory(self, agent: str | None = None) -> responses.Remembered:
        """The index and the notes of an agent."""
        return self._call("GET", "/api/memory", responses.Remembered, query={"agent": agent})

    def remember(self, text: str, *, agent: str | None = None, **about: str) -> responses.Noted:
        """Write a note, as a person does; `about`: category, name, description."""
        said = {"text": text, **about}
        return self._call("POST", "/api/memory", responses.Noted, said, query={"agent": agent})

    def forget(self, note: str, *, agent: str | None = None) -> None:
        """Take a note away, by its file or its exact name."""
        where = f"/api/memory/{quote(note, safe='')}"
        self._call("DELETE", where, None, query={"agent": agent})

    def revise(
        self, note: str, text: str, *, agent: str | None = None, **about: str
    ) -> responses.Noted:
        """Let a note say something else; `about`: name, description, category, version."""
        where, said = f"/api/memory/{quote(note, safe='')}", {"text": text, **about}
        return self._call("PUT", where, responses.Noted, said, query={"agent": agent})

    def memory_changes(self, agent: str | None = None) -> list[responses.MemoryChange]:
        """What was done to a memory, newest first."""
        kind = list[responses.MemoryChange]
        return self._call("GET", "/api/memory/changes", kind, query={"agent": agent})

    def dream(
        self, *, agent: str | None = None, force: bool = False, dry_run: bool = False
    ) -> responses.Dreamed:
        """Put a memory in order, if it is time or forced; or tell what would be changed."""
        said, query = {"force": force, "dryRun": dry_run}, {"agent": agent}
        where = "/api/memory/dream"
        return self._call("POST", where, responses.Dreamed, said, query=query, seconds=TURN_SECONDS)

    def undo(self, agent: str | None = None) -> responses.TakenBack:
        """Take back the last change of a memory."""
        return self._call("POST", "/api/memory/undo", responses.TakenBack, query={"agent": agent})

    # --- health

    def health(self) -> dict[str, Any]:
        """Counts."""
        return self._call("GET", "/api/health", dict[str, Any])

    def verify(self, session_id: str) -> responses.Verified:
        """Look at every byte of a session."""
        return self._call(
            "GET", _at(session_id, "verify"), responses.Verified, seconds=TURN_SECONDS
        )

    def verify_all(self) -> responses.Checked:
        """Begin to look at every byte of every session, unless that is under way."""
        return self._call("POST", "/api/health/verify", responses.Checked)

    def verified(self) -> responses.Checked:
        """How far that is, and what was found."""
        return self._call("GET", "/api/health/verify", responses.Checked)

    def repair(self, session_id: str) -> responses.Repaired:
        """Set right what can be in a session, deleting nothing."""
        where = _at(session_id, "repair")
        return self._call("POST", where, responses.Repaired, seconds=TURN_SECONDS)

    def link(self) -> str:
        """An address that opens the page once."""
        return self._call("POST", "/api/link", responses.Link).url

    def close(self) -> None:
        """Give back the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(
        self,
        method: str,
        where: str,
        kind: type[T] | None,
        said: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> T:
        answer = self._ask(method, where, said, query=query, seconds=seconds)
        return msgspec.json.decode(answer.content, type=kind) if kind else None  # type: ignore[return-value]

    def _ask(
        self,
        method: str,
        where: str,
        said: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> httpx2.Response:
        headers, body = {}, None
        if said is not None:
            headers["Content-Type"] = "application/json"
            body = _encoded(said)
        given = {key: _text(one) for key, one in (query or {}).items() if one is not None}
        # A connection that was kept may have been hung up on meanwhile, which is seen only when it
        # is used again. What only reads is then asked once more, on another one.
        for tries_left in (method == "GET", False):
            try:
                answer = self._http.request(
                    method,
                    where,
                    content=body,
                    params=given,
                    headers=headers,
                    timeout=seconds or self._seconds,
                )
                break
            except self._failed as error:
                if tries_left and isinstance(error, self._hung_up):
                    continue
                text = f"the daemon at {self.address} does not answer: {error}"
                raise StoreFailedError(text) from error
        if not answer.is_success:
            raise failure(answer.status_code, answer.content)
        return answer


def _at(session_id: str, *rest: str) -> str:
    if not session_id:
        raise InvalidIdError("no session is named")
    return "/".join(("/api/sessions", quote(session_id, safe="", errors="replace"), *rest))


def _encoded(said: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(said)
    except UnicodeEncodeError:  # a lone surrogate: what a terminal or a file made of bad bytes
        return msgspec.json.encode(clean(said))


def _camel(facts: Mapping[str, str | None]) -> dict[str, str | None]:
    return {"systemPrompt" if key == "system_prompt" else key: one for key, one in facts.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_held(file: Path) -> bool:
    """Whether a process has the lock on a file."""
    import fcntl  # noqa: PLC0415 - not on every platform

    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read(file: Path) -> str:
    """One line of a small file that must be no link."""
    with open(
        os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="ascii"
    ) as opened:
        return opened.read(4096).strip()
