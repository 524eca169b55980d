"""`/api/sessions/{id}/messages` and what goes with it; `/api/inbound`: running turns.

A client that stops waiting stops nothing: the turn goes on, and its messages are in the log.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from litestar import Controller, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from everlog.daemon.api.requests import (
    LARGEST,
    CancelRun,
    Focus,
    Limit,
    NewInbound,
    NewMessage,
    find,
    record_object,
    record_objects,
)
from everlog.daemon.error_responses import INVALID, PROBLEMS, Refused
from everlog.model import AnyRecord, Compaction, Message, Rewind, Tombstone
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.responses import (
    Accepted,
    Cancelled,
    Compacted,
    Deleted,
    History,
    LeftOutOf,
    Prepared,
    Ran,
    Received,
    Restored,
)

_SHOWN = (Message, Compaction, Tombstone, Rewind)  # of a log

After = Annotated[int, QueryParameter(ge=0, le=LARGEST)]

_MESSAGE = "/sessions/{session_id:str}/messages/{seq:int}"
_LATER = {202: ResponseSpec(Accepted, generate_examples=False, description="It will be answered.")}
_ARRIVED = {202: ResponseSpec(Received, generate_examples=False, description="Likewise.")}


class TalkRoutes(Controller):
    """Messages to agents."""

    path = "/api"
    tags = ("talk",)

    @post("/sessions/{session_id:str}/messages", status_code=200, responses=PROBLEMS | _LATER)
    async def say(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[NewMessage],
        wait: FromQuery[bool] = True,
    ) -> Response[Ran]:
        """Say something; answers when the turn has ended, or with `wait=false` at once.

        The message is durable in either case. A second one queues behind the first.
        """
        session = await find(runtime, session_id)
        run = await runtime.submit(session, data.content, cwd=data.cwd)
        if not wait:
            taken = Accepted(run_id=run.id, position=run.position)
            later: Response[Any] = Response(
                taken, status_code=202
            )  # the document has it by `_LATER`
            return later
        answer = await run.answer()
        messages = record_objects(answer.messages)
        return Response(Ran(run_id=run.id, messages=messages, usage=answer.usage))

    @get("/sessions/{session_id:str}/messages", responses=PROBLEMS)
    async def history(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        after: After = 0,
        limit: Limit = 100,
        everything: Annotated[bool, QueryParameter(name="all")] = False,
    ) -> History:
        """The live messages behind a seq, a page of them.

        `all=true`: the log instead, with what was deleted, rewound or summarised, and the markers
        that say so; then the cost follows the page.
        """
        session = await find(runtime, session_id)
        read = _log if everything else _live
        page = await runtime.store.call(read, session.sync, after, limit + 1)
        more = len(page) > limit
        return History(
            messages=record_objects(page[:limit]), next=page[limit - 1].seq if more else None
        )

    @delete(_MESSAGE, status_code=200, responses=PROBLEMS)
    async def hide(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        seq: FromPath[int],
    ) -> Deleted:
        """Hide a message, with the tool calls and results that belong to it."""
        marker = await runtime.changes.hide(await find(runtime, session_id), _known(seq))
        return Deleted(seq=marker.seq, deletes=marker.deletes)

    @post(f"{_MESSAGE}/restore", status_code=200, responses=PROBLEMS)
    async def show_again(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        seq: FromPath[int],
    ) -> Restored:
        """Show a hidden message again."""
        marker = await runtime.changes.restore(await find(runtime, session_id), _known(seq))
        return Restored(seq=marker.seq, restores=marker.restores)

    @post("/sessions/{session_id:str}/cancel", status_code=200, responses=PROBLEMS)
    async def cancel(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[CancelRun | None] = None,
    ) -> Cancelled:
        """Stop a turn, or take back a message that waits for its own."""
        session = await find(runtime, session_id)
        run_id = data.run_id if data else ""
        return Cancelled(cancelled=await runtime.cancel(session.id, run_id))

    @get("/sessions/{session_id:str}/context", responses=PROBLEMS)
    async def context(
        self, runtime: NamedDependency[Runtime], session_id: FromPath[str]
    ) -> Prepared:
        """What the model would be sent next."""
        session = await find(runtime, session_id)
        context = await runtime.context(session)
        return Prepared(
            messages=record_objects(context.messages),
            tokens=context.tokens,
            window=context.window,
            left_out=[LeftOutOf(seq=one.seq, why=one.why) for one in context.left_out],
            stale=list(context.stale),
        )

    @post("/sessions/{session_id:str}/compact", status_code=200, responses=PROBLEMS)
    async def compact(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[Focus | None] = None,
    ) -> Compacted:
        """Summarise the older part of a session; not during a turn.

        `dryRun=true`: nothing is written; `record` is what would be, with the built-in summary.
        """
        session = await find(runtime, session_id)
        asked = data or Focus()
        if asked.dry_run:
            outcome = await runtime.plan_compaction(session, focus=asked.focus)
        else:
            outcome = await runtime.compact(session, focus=asked.focus)
        return Compacted(
            compacted=outcome.compacted,
            reason=outcome.reason,
            record=None if outcome.record is None else record_object(outcome.record),
            messages=outcome.messages,
            tokens=outcome.tokens,
            tokens_freed=outcome.tokens_freed,
            summariser=outcome.summariser,
            problem=outcome.problem,
        )

    @post("/inbound", status_code=200, responses=PROBLEMS | _ARRIVED)
    async def inbound(
        self,
        runtime: NamedDependency[Runtime],
        data: JSONBody[NewInbound],
        wait: FromQuery[bool] = True,
    ) -> Response[Received]:
        """A channel's message: routed by who and where, queued, answered."""
        content = data.text if data.text is not None else data.content
        if content is None or (data.text is not None and data.content is not None):
            raise Refused(400, INVALID, details=("/text: give either text or content",))
        arrived = await runtime.inbound(
            data.context.inbound(),
            content,
            session_key=data.session_key or "",
            new_chat=data.new_chat,
            cwd=data.cwd,
            system=data.system,
        )
        received = Received(
            session_id=arrived.session.id,
            key=arrived.key,
            run_id=arrived.run.id,
            reply=(await arrived.run.answer()).reply.text if wait else None,
        )
        return Response(received, status_code=200 if wait else 202)


def _live(session: Session, after: int, limit: int) -> list[AnyRecord]:
    """Live messages behind a seq. A marker may come later than all of them: the log is read."""
    return list(islice((one for one in session.view().messages if one.seq > after), limit))


def _log(session: Session, after: int, limit: int) -> list[AnyRecord]:
    return list(
        islice((one for one in session.entries(after=after) if isinstance(one, _SHOWN)), limit)
    )


def _known(seq: int) -> int:
    if not 0 < seq <= LARGEST:
        raise Refused(404, "Message not found", code="NotFoundError")
    return seq
