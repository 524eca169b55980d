"""The HTTP client: one method for each route of the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from everlog.client import websocket
from everlog.errors import InvalidIdError, NotFoundError, SettingsError, StoreFailedError
from everlog.log.line_codec import replace_surrogates
from everlog.log.usage_report import UsageSummary
from everlog.model import AnyBlock
from everlog.ports import Results
from everlog.wire import requests, responses
from everlog.wire.error_table import decode_error
from everlog.wire.events import Error, MessageComplete, RunEvent

if TYPE_CHECKING:
    import httpx2
    from websockets.sync.connection import Connection

T = TypeVar("T")
Content = str | Sequence[AnyBlock | Mapping[str, Any]]

CALL_SECONDS = 30.0  # for a call that does not wait for a model
TURN_SECONDS = 3600.0


class Client:
    """A client of one home's daemon. Not thread-safe."""

    def __init__(self, address: str, token: str, *, timeout: float = CALL_SECONDS) -> None:
        import httpx2  # noqa: PLC0415 - takes 100 ms, and the types alone do not need it

        self.address = address.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._http_error = httpx2.HTTPError
        self._disconnect_errors = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
        self._http: httpx2.Client = httpx2.Client(
            base_url=self.address,
            headers={"Authorization": f"Bearer {token}"},
            verify=self.address.startswith("https:"),  # loading all certificates takes 30 ms
            trust_env=False,  # a local daemon is never behind a proxy
        )

    @classmethod
    def of(cls, home: Path) -> Self:
        """Connect to the running daemon of a home. Raises NotFoundError if none is running."""
        no_daemon = NotFoundError(f"no daemon is running for {home}", hint="start one: everlog serve")
        try:
            if not _is_locked(home / "run" / "daemon.lock"):
                raise no_daemon  # another program at a dead daemon's address must not get the token
            client = cls(_read_line(home / "run" / "address"), _read_line(home / "run" / "token"))
        except FileNotFoundError:
            raise no_daemon from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"{home / 'run'} cannot be used: {error}") from error
        try:
            client.health()
        except StoreFailedError as error:
            client.close()
            raise no_daemon from error
        return client

    # --- sessions

    def sessions(
        self,
        *,
        agent: str | None = None,
        sender: str | None = None,
        source: str | None = None,
        since: str | None = None,
        title: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> responses.Listing:
        """List sessions, last active first."""
        criteria = {"agent": agent, "sender": sender, "source": source, "since": since, "title": title}
        response = self._request("GET", "/api/sessions", query={"limit": limit, "cursor": cursor, **criteria})
        next_query = parse_qs(urlsplit(response.links.get("next", {}).get("url", "")).query)
        return responses.Listing(
            sessions=msgspec.json.decode(response.content, type=list[responses.SessionSummary]),
            total=int(response.headers["x-total-count"]),
            next=next_query.get("cursor", [None])[0],
        )

    def create(
        self,
        *,
        title: str | None = None,
        agent: str | None = None,
        sender: str | None = None,
        model: str | None = None,
        system_prompt: str | None = None,
        check: bool = False,
    ) -> responses.CreatedSession:
        """Create a session.

        With `check`, a model that the daemon cannot use is refused now; otherwise turns fail later.
        """
        body = _fill(
            requests.NewSession, name=title, agent=agent, sender=sender, model=model, system_prompt=system_prompt
        )
        return self._call("POST", "/api/sessions", responses.CreatedSession, body, check=check or None)

    def session(self, session_id: str) -> responses.SessionDetail:
        """Return the live messages and the metadata of a session."""
        return self._call("GET", _session_path(session_id), responses.SessionDetail)

    def update(
        self,
        session_id: str,
        *,
        title: str | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        system_prompt: str | UnsetType | None = UNSET,
        check: bool = False,
        continue_here: bool = False,
    ) -> responses.SessionSummary:
        """Change the metadata of a session; None removes a value. `check` as in `create`."""
        path, fields = _session_path(session_id), {"name": title, "model": model, "system_prompt": system_prompt}
        body = requests.SessionUpdate(**fields)  # type: ignore[arg-type]  # the daemon refuses what is None
        return self._call(
            "PATCH", path, responses.SessionSummary, body, check=check or None, continueHere=continue_here or None
        )

    def delete(self, session_id: str, *, continue_here: bool = False) -> None:
        """Delete a session permanently."""
        self._call("DELETE", _session_path(session_id), None, continueHere=continue_here or None)

    def messages(
        self, session_id: str, *, after: int = 0, limit: int = 100, everything: bool = False
    ) -> responses.History:
        """Return a page of a session's live messages, or with `everything` of its log."""
        path = _session_path(session_id, "messages")
        return self._call("GET", path, responses.History, after=after, limit=limit, all=everything or None)

    def context(self, session_id: str) -> responses.PreparedContext:
        """Return the context of the next model call."""
        return self._call("GET", _session_path(session_id, "context"), responses.PreparedContext)

    def fork(self, session_id: str, at: int | None = None) -> responses.CreatedSession:
        """Create a session that shares everything up to the record `at`."""
        path, body = _session_path(session_id, "fork"), requests.ForkRequest(at=at)
        return self._call("POST", path, responses.CreatedSession, body)

    def copy(self, session_id: str) -> responses.CreatedSession:
        """Copy a session of another program beside the store into the store."""
        return self._call("POST", _session_path(session_id, "copy"), responses.CreatedSession)

    def resume_session(self, session_id: str) -> responses.SessionSummary:
        """Make a session the current one of its key, or of its agent and sender."""
        return self._call("POST", _session_path(session_id, "resume"), responses.SessionSummary)

    def rewind(self, session_id: str, to_seq: int, *, continue_here: bool = False) -> responses.RewindResult:
        """Rewind a session to a message."""
        path, body = _session_path(session_id, "rewind"), requests.RewindRequest(to_seq=to_seq)
        return self._call("POST", path, responses.RewindResult, body, continueHere=continue_here or None)

    def delete_message(self, session_id: str, seq: int, *, continue_here: bool = False) -> responses.DeleteResult:
        """Delete a message; `restore_message` brings it back."""
        path = _session_path(session_id, "messages", str(seq))
        return self._call("DELETE", path, responses.DeleteResult, continueHere=continue_here or None)

    def restore_message(self, session_id: str, seq: int, *, continue_here: bool = False) -> responses.RestoreResult:
        """Restore a deleted message."""
        path = _session_path(session_id, "messages", str(seq), "restore")
        return self._call("POST", path, responses.RestoreResult, continueHere=continue_here or None)

    # --- turns

    def send(
        self,
        session_id: str,
        content: Content,
        *,
        id: str = "",
        cwd: str | None = None,
        timeout: float = TURN_SECONDS,
        continue_here: bool = False,
    ) -> responses.RunResult:
        """Send a message and wait for the end of the turn; sent again with its id, only once.

        A session of another program beside the store is answered only if told to `continue_here`.
        """
        path, body = _session_path(session_id, "messages"), _fill(requests.NewMessage, content=content, id=id, cwd=cwd)
        return self._call("POST", path, responses.RunResult, body, timeout=timeout, continueHere=continue_here or None)

    def submit(
        self, session_id: str, content: Content, *, id: str = "", cwd: str | None = None, continue_here: bool = False
    ) -> responses.AcceptedMessage:
        """Queue a message. It is durable on return; the turn runs in the daemon. `continue_here` as in `send`."""
        path, body = _session_path(session_id, "messages"), _fill(requests.NewMessage, content=content, id=id, cwd=cwd)
        return self._call("POST", path, responses.AcceptedMessage, body, wait=False, continueHere=continue_here or None)

    def stream(self, session_id: str, content: Content, *, cwd: str | None = None) -> Iterator[RunEvent]:
        """Send a message and yield the events of its turn until it ends."""
        with websocket.connect(self.address, self._token) as socket:
            websocket.subscribe(socket, session_id, None)
            run = self.submit(session_id, content, cwd=cwd).run_id
            for event in websocket.read_events(socket):
                if event.run_id == run:
                    yield event
                    if isinstance(event, MessageComplete | Error):
                        return

    def events(self, session_id: str, after: int | None = 0) -> Iterator[RunEvent]:
        """Yield the messages after a seq, then events as they happen; None: only new events."""
        with websocket.connect(self.address, self._token) as socket:
            websocket.subscribe(socket, session_id, after)
            yield from websocket.read_events(socket)

    def connect(self) -> Connection:
        """Open a WebSocket, for the functions of `everlog.client.websocket`."""
        return websocket.connect(self.address, self._token)

    def cancel(self, session_id: str, run_id: str = "") -> bool:
        """Cancel a turn or a queued message. Return whether there was one."""
        path, body = _session_path(session_id, "cancel"), requests.CancelRequest(run_id=run_id)
        return self._call("POST", path, responses.CancelResult, body).cancelled

    def compact(self, session_id: str, *, focus: str = "", continue_here: bool = False) -> responses.CompactionResult:
        """Summarise the older part of a session."""
        path, body = _session_path(session_id, "compact"), requests.CompactRequest(focus=focus)
        return self._call(
            "POST", path, responses.CompactionResult, body, timeout=TURN_SECONDS, continueHere=continue_here or None
        )

    def inbound(
        self,
        context: Mapping[str, Any],
        text: str,
        *,
        id: str = "",
        session_key: str | None = None,
        new_chat: bool = False,
        cwd: str | None = None,
        system: bool = False,
        wait: bool = True,
    ) -> responses.InboundResult:
        """Submit a channel's message; delivered again with its id, it is answered once."""
        options = {"id": id, "session_key": session_key, "new_chat": new_chat, "cwd": cwd, "system": system}
        body = _fill(requests.InboundMessage, context=dict(context), text=text, **options)
        return self._call("POST", "/api/inbound", responses.InboundResult, body, timeout=TURN_SECONDS, wait=wait)

    # --- the daemon

    def cron(self) -> list[dict[str, Any]]:
        """List the cron jobs with their status."""
        return self._call("GET", "/api/cron", list[dict[str, Any]])

    def pause(self, job: str) -> None:
        """Pause a cron job."""
        self._call("POST", _path("cron", job, "pause"), responses.ActionResult)

    def resume(self, job: str) -> None:
        """Resume a paused cron job."""
        self._call("POST", _path("cron", job, "resume"), responses.ActionResult)

    def run(self, job: str) -> str:
        """Run a cron job now. Return the id of its session."""
        return self._call("POST", _path("cron", job, "run"), responses.ActionResult).session_id or ""

    # --- search, usage, memory

    def search(
        self,
        text: str,
        *,
        agent: str | None = None,
        sender: str | None = None,
        source: str | None = None,
        title: str | None = None,
        role: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> Results:
        """Search all sessions, best match first; `offset` skips so many of them."""
        criteria: dict[str, Any] = {"agent": agent, "sender": sender, "source": source, "title": title}
        bounds: dict[str, Any] = {"role": role, "since": since, "until": until, "limit": limit, "offset": offset}
        return self._call("GET", "/api/search", Results, q=text, **criteria, **bounds)

    def usage(
        self,
        session_id: str | None = None,
        *,
        by: str | None = None,
        agent: str | None = None,
        sender: str | None = None,
        source: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> UsageSummary:
        """Return the usage of all sessions, or of one, over time.

        `agent`, `sender` and `source` choose among all sessions.
        """
        path = "/api/usage" if session_id is None else _session_path(session_id, "usage")
        criteria: dict[str, Any] = {"agent": agent, "sender": sender, "source": source}
        return self._call("GET", path, UsageSummary, by=by, since=since, until=until, **criteria)

    def memory(self, agent: str | None = None) -> responses.AgentMemory:
        """Return the index and the notes of an agent's memory."""
        return self._call("GET", "/api/memory", responses.AgentMemory, agent=agent)

    def remember(
        self,
        text: str,
        *,
        agent: str | None = None,
        category: str | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> responses.SavedNote:
        """Write a note as a person, so that no dream changes it."""
        body = _fill(requests.NewNote, text=text, category=category, name=name, description=description)
        return self._call("POST", "/api/memory", responses.SavedNote, body, agent=agent)

    def forget(self, note: str, *, agent: str | None = None) -> None:
        """Delete a note by its file or its exact name."""
        self._call("DELETE", _path("memory", note), None, agent=agent)

    def revise(
        self,
        note: str,
        text: str,
        *,
        agent: str | None = None,
        category: str | None = None,
        name: str | None = None,
        description: str | None = None,
        version: str | None = None,
    ) -> responses.SavedNote:
        """Replace the text of a note, if it is still of this `version`."""
        fields = {"category": category, "name": name, "description": description, "version": version}
        body = _fill(requests.NoteRevision, text=text, **fields)
        return self._call("PUT", _path("memory", note), responses.SavedNote, body, agent=agent)

    def memory_changes(self, agent: str | None = None) -> list[responses.MemoryChange]:
        """List the changes to a memory, newest first."""
        return self._call("GET", "/api/memory/changes", list[responses.MemoryChange], agent=agent)

    def dream(self, *, agent: str | None = None, force: bool = False, dry_run: bool = False) -> responses.DreamResult:
        """Consolidate a memory if a dream is due or `force`; `dry_run` only reports changes."""
        path, body = "/api/memory/dream", requests.DreamRequest(force=force, dry_run=dry_run)
        return self._call("POST", path, responses.DreamResult, body, timeout=TURN_SECONDS, agent=agent)

    def undo(self, agent: str | None = None) -> responses.UndoResult:
        """Undo the last change to a memory."""
        return self._call("POST", "/api/memory/undo", responses.UndoResult, agent=agent)

    # --- health

    def health(self) -> dict[str, Any]:
        """Return the daemon's counts, and whether its store is reachable."""
        return self._call("GET", "/api/health", dict[str, Any])

    def verify(self, session_id: str) -> responses.VerifyResult:
        """Check the integrity of every byte of a session."""
        return self._call("GET", _session_path(session_id, "verify"), responses.VerifyResult, timeout=TURN_SECONDS)

    def verify_all(self) -> responses.IntegrityStatus:
        """Start the integrity check of all sessions, unless it is running."""
        return self._call("POST", "/api/health/verify", responses.IntegrityStatus)

    def integrity_status(self) -> responses.IntegrityStatus:
        """Return the progress and findings of the integrity check of all sessions."""
        return self._call("GET", "/api/health/verify", responses.IntegrityStatus)

    def repair(self, session_id: str) -> responses.RepairResult:
        """Repair a session as far as possible, deleting nothing."""
        path = _session_path(session_id, "repair")
        return self._call("POST", path, responses.RepairResult, timeout=TURN_SECONDS)

    def link(self) -> str:
        """Create a one-time link to the web page."""
        return self._call("POST", "/api/link", responses.PageLink).url

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(
        self,
        method: str,
        path: str,
        response_type: type[T] | None,
        body: msgspec.Struct | None = None,
        *,
        timeout: float | None = None,
        **query: object,
    ) -> T:
        """Call a route; the keywords are the parameters of its query, without those that are None."""
        response = self._request(method, path, body, query=query, timeout=timeout)
        return msgspec.json.decode(response.content, type=response_type) if response_type else None  # type: ignore[return-value]

    def _request(
        self,
        method: str,
        path: str,
        data: msgspec.Struct | None = None,
        *,
        query: Mapping[str, object],
        timeout: float | None = None,
    ) -> httpx2.Response:
        headers, body = {}, None
        if data is not None:
            headers["Content-Type"] = "application/json"
            body = _encode_body(data)
        params = {key: _query_value(value) for key, value in query.items() if value is not None}
        # The daemon may have closed a pooled connection, which shows only on its next use. A read
        # is then retried once, on another connection.
        for may_retry in (method == "GET", False):
            try:
                response = self._http.request(
                    method, path, content=body, params=params, headers=headers, timeout=timeout or self._timeout
                )
                break
            except self._http_error as error:
                if may_retry and isinstance(error, self._disconnect_errors):
                    continue
                message = f"the daemon at {self.address} does not respond: {error}"
                raise StoreFailedError(message) from error
        if not response.is_success:
            raise decode_error(response.status_code, response.content)
        return response


def _session_path(session_id: str, *segments: str) -> str:
    if not session_id:
        raise InvalidIdError("the session id is empty")
    return _path("sessions", session_id, *segments)


def _path(*segments: str) -> str:
    return "/".join(("/api", *(quote(segment, safe="", errors="replace") for segment in segments)))


def _fill(body_type: type[T], **fields: object) -> T:
    """Return a body without the fields that are None; the daemon checks their values."""
    return body_type(**{name: value for name, value in fields.items() if value is not None})


def _encode_body(body: msgspec.Struct) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # a lone surrogate, from bad bytes in a terminal or a file
        return msgspec.json.encode(replace_surrogates(body))


def _query_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_locked(file: Path) -> bool:
    """Return whether a process holds the lock on a file."""
    import fcntl  # noqa: PLC0415 - not on every platform

    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read_line(file: Path) -> str:
    """Read the one line of a small file, not following a symlink."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="ascii") as stream:
        return stream.read(4096).strip()
