"""`/api/sessions`: list, create, read, update, delete, fork and rewind sessions."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from everlog.daemon.api.session_lookup import ContinueHere, Limit, find_session
from everlog.daemon.error_responses import ERROR_RESPONSES, HttpError
from everlog.errors import SettingsError, UnsupportedError
from everlog.log.fold import to_builtins
from everlog.model import Metadata
from everlog.ports import Copying, SessionAccess
from everlog.ports.capabilities import listed_access
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.requests import ForkRequest, NewSession, RewindRequest, SessionUpdate
from everlog.wire.responses import CreatedSession, RewindResult, SessionDetail, SessionSummary, record_objects


class SessionRoutes(Controller):
    """Sessions, by id, key or alias."""

    path = "/api/sessions"
    tags = ("sessions",)

    @get("/", responses=ERROR_RESPONSES)
    async def list_sessions(
        self,
        *,
        runtime: NamedDependency[Runtime],
        limit: Limit = 50,
        cursor: FromQuery[str | None] = None,
        agent: FromQuery[str | None] = None,
        sender: FromQuery[str | None] = None,
        source: FromQuery[str | None] = None,
        since: FromQuery[str | None] = None,
        title: FromQuery[str | None] = None,
    ) -> Response[list[SessionSummary]]:
        """List sessions, last active first. `X-Total-Count`, and `Link` to the next page."""
        criteria: dict[str, Any] = {"agent": agent, "sender": sender, "source": source, "since": since, "title": title}
        page = await runtime.store.list(limit=limit, cursor=cursor, **criteria)
        headers = {"X-Total-Count": str(page.total)}
        if page.next is not None:
            query = {name: value for name, value in criteria.items() if value is not None}
            next_query = urlencode({"limit": limit, "cursor": page.next, **query})
            headers["Link"] = f'</api/sessions?{next_query}>; rel="next"'
        rows = [row.metadata for row in page]
        access = await runtime.store.call(lambda: [listed_access(runtime.store.sync.port, row.id) for row in rows])
        return Response(list(map(partial(_summarize, runtime), rows, access)), headers=headers)

    @post("/", status_code=200, responses=ERROR_RESPONSES)
    async def create_session(
        self, runtime: NamedDependency[Runtime], data: JSONBody[NewSession], check: FromQuery[bool] = False
    ) -> CreatedSession:
        """Create a session; with `check`, refuse a model that cannot be used."""
        if check:
            agent = runtime.router.default_agent if data.agent is UNSET else data.agent
            await _check_model(runtime, runtime.settings.model_of(agent) if data.model is UNSET else data.model)
        session = await runtime.create(**_store_fields(data))
        return CreatedSession(id=session.id, name=(await session.metadata()).display_title)

    @get("/{session_id:str}", responses=ERROR_RESPONSES)
    async def get_session(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> SessionDetail:
        """Return a session: its live messages, also those before a summary, and its metadata."""
        session = await find_session(runtime, session_id)

        def read(sync: Session) -> SessionDetail:
            known = sync.metadata
            fields = {**to_builtins(known), "resumeCommand": known.resume_command}
            return SessionDetail(messages=record_objects(sync.messages()), metadata=fields)

        return await runtime.store.call(read, session.sync)

    @patch("/{session_id:str}", responses=ERROR_RESPONSES)
    async def update_session(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[SessionUpdate],
        check: FromQuery[bool] = False,
        continue_here: ContinueHere = False,
    ) -> SessionSummary:
        """Change the name, model or system prompt of a session; `check` as for a new one."""
        session = await find_session(runtime, session_id)
        if check:
            await _check_model(runtime, data.model)
        metadata = await runtime.edits.update(session, continue_here=continue_here, **_store_fields(data))
        return _summarize(runtime, metadata, await session.access())

    @delete("/{session_id:str}", responses=ERROR_RESPONSES)
    async def delete_session(
        self, runtime: NamedDependency[Runtime], session_id: FromPath[str], continue_here: ContinueHere = False
    ) -> None:
        """Delete a session permanently; not during a turn."""
        await runtime.edits.delete(await find_session(runtime, session_id), continue_here=continue_here)

    @post("/{session_id:str}/fork", status_code=200, responses=ERROR_RESPONSES)
    async def fork_session(
        self, runtime: NamedDependency[Runtime], session_id: FromPath[str], data: JSONBody[ForkRequest | None] = None
    ) -> CreatedSession:
        """Create a session that shares everything up to a record."""
        session = await find_session(runtime, session_id)
        forked = await session.fork(data.at if data else None)
        return CreatedSession(id=forked.id, name=(await forked.metadata()).display_title)

    @post("/{session_id:str}/copy", status_code=200, responses=ERROR_RESPONSES)
    async def copy_session(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> CreatedSession:
        """Copy a session of another program beside the store into the store, where it can be continued.

        A copy that was made before is brought up to date, unless it was continued meanwhile.
        """
        session = await find_session(runtime, session_id)
        copying = runtime.store.sync.port.capability(Copying)
        if copying is None:
            raise UnsupportedError("there is no other program's directory beside the store", hint="fork the session")
        copy = await runtime.store.session(await runtime.store.call(copying.copy_session, session.id))
        return CreatedSession(id=copy.id, name=(await copy.metadata()).display_title)

    @post("/{session_id:str}/resume", status_code=200, responses=ERROR_RESPONSES)
    async def resume_session(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> SessionSummary:
        """Make a session the current one of its key, or of its agent and sender.

        Messages that are routed there go to it until another is resumed or begun.
        """
        session = await find_session(runtime, session_id)
        return _summarize(runtime, await session.resume(), await session.access())

    @post("/{session_id:str}/rewind", status_code=200, responses=ERROR_RESPONSES)
    async def rewind_session(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[RewindRequest],
        continue_here: ContinueHere = False,
    ) -> RewindResult:
        """Rewind a session to a message; not during a turn."""
        session = await find_session(runtime, session_id)
        marker = await runtime.edits.rewind(session, data.to_seq, continue_here=continue_here)
        return RewindResult(seq=marker.seq, to_seq=marker.to_seq)


def _store_fields(body: NewSession | SessionUpdate) -> dict[str, Any]:
    """Return the fields that a client set, under the store's names for them."""
    names = {"name": "title", "system_prompt": "system_prompt_override"}
    return {names.get(field, field): value for field, value in asdict(body).items() if value is not UNSET}


def _summarize(runtime: Runtime, metadata: Metadata, access: SessionAccess) -> SessionSummary:
    """Return a session as a row of a listing."""
    return SessionSummary(
        id=metadata.id,
        name=metadata.display_title,
        last_message_at=metadata.last_message_at,
        message_count=metadata.message_count,
        source=metadata.source,
        model=metadata.model,
        agent=metadata.agent,
        sender=metadata.sender,
        running=runtime.current(metadata.id) is not None,
        waiting=len(metadata.waiting),
        resume_command=metadata.resume_command,
        access=access.mode,
        actions=sorted(access.actions),
    )


async def _check_model(runtime: Runtime, model: str | UnsetType) -> None:
    """Refuse a model that no turn could use; in a thread, as it loads the provider's library."""
    if model is UNSET:
        return
    try:
        await runtime.store.call(runtime.store.sync.provider, model)
    except SettingsError as error:  # the client's mistake, not the daemon's
        raise HttpError(400, error.message, hint=error.hint, code="SettingsError") from error
