"""`/api/sessions`: listing, making, reading, changing and deleting sessions."""

from __future__ import annotations

from urllib.parse import urlencode

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import UNSET, UnsetType

from everlog.daemon.api.requests import (
    Change,
    ForkAt,
    Limit,
    NewSession,
    RewindTo,
    find,
    given,
    record_objects,
    summary,
)
from everlog.daemon.error_responses import PROBLEMS, Refused
from everlog.errors import SettingsError
from everlog.log.fold import to_builtins
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.responses import Named, Rewound, Summary, Whole


class SessionRoutes(Controller):
    """Sessions by id, key, alias, or the beginning of an id."""

    path = "/api/sessions"
    tags = ("sessions",)

    @get("/", responses=PROBLEMS)
    async def listed(
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
    ) -> Response[list[Summary]]:
        """Sessions, last active first. `X-Total-Count`, and `Link` to the next page."""
        which = {
            "agent": agent,
            "sender": sender,
            "source": source,
            "since": since,
            "title": title,
        }
        page = await runtime.store.list(limit=limit, cursor=cursor, **which)
        headers = {"X-Total-Count": str(page.total)}
        if page.next is not None:
            query = {name: value for name, value in which.items() if value is not None}
            more = urlencode({"limit": limit, "cursor": page.next, **query})
            headers["Link"] = f'</api/sessions?{more}>; rel="next"'
        return Response([summary(runtime, one.metadata) for one in page], headers=headers)

    @post("/", status_code=200, responses=PROBLEMS)
    async def make(
        self,
        runtime: NamedDependency[Runtime],
        data: JSONBody[NewSession],
        check: FromQuery[bool] = False,
    ) -> Named:
        """Make a session; with `check` not for a model that cannot be used here."""
        if check:
            await _check_model(runtime, data.model)
        facts = given(data, name="title", system_prompt="system_prompt_override")
        session = await runtime.create(**facts)
        return Named(id=session.id, name=(await session.metadata()).title)

    @get("/{session_id:str}", responses=PROBLEMS)
    async def whole(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> Whole:
        """A session: its live messages, those before a summary too, and its metadata."""
        session = await find(runtime, session_id)

        def read(sync: Session) -> Whole:
            return Whole(
                messages=record_objects(sync.messages()), metadata=to_builtins(sync.metadata)
            )

        return await runtime.store.call(read, session.sync)

    @patch("/{session_id:str}", responses=PROBLEMS)
    async def change(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[Change],
        check: FromQuery[bool] = False,
    ) -> Summary:
        """Give a session another name, model or system prompt; `check` as for a new one."""
        session = await find(runtime, session_id)
        if check:
            await _check_model(runtime, data.model)
        changes = given(data, system_prompt="system_prompt_override")
        return summary(runtime, await runtime.changes.update(session, **changes))

    @delete("/{session_id:str}", responses=PROBLEMS)
    async def remove(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> None:
        """Remove a session for good; not during a turn."""
        await runtime.changes.delete(await find(runtime, session_id))

    @post("/{session_id:str}/fork", status_code=200, responses=PROBLEMS)
    async def fork(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[ForkAt | None] = None,
    ) -> Named:
        """A new session that shares everything up to a record."""
        session = await find(runtime, session_id)
        made = await session.fork(data.at if data else None)
        return Named(id=made.id, name=(await made.metadata()).title)

    @post("/{session_id:str}/rewind", status_code=200, responses=PROBLEMS)
    async def rewind(
        self, runtime: NamedDependency[Runtime], session_id: FromPath[str], data: JSONBody[RewindTo]
    ) -> Rewound:
        """Go back to a message; not during a turn."""
        marker = await runtime.changes.rewind(await find(runtime, session_id), data.to_seq)
        return Rewound(seq=marker.seq, to_seq=marker.to_seq)


async def _check_model(runtime: Runtime, model: str | UnsetType) -> None:
    """Refuse a model that no turn could use; in a thread, for what talks to it is loaded first."""
    if model is UNSET:
        return
    try:
        await runtime.store.call(runtime.store.sync.provider, model)
    except SettingsError as error:  # the client's to mend, by naming another one
        raise Refused(400, error.message, hint=error.hint, code="SettingsError") from error
