"""`/api/sessions/{id}/messages`, cancel, context and compact; `/api/inbound`: running turns.

A client that stops waiting does not stop its turn: it continues, and its messages are in the log.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from litestar import Controller, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec.structs import asdict

from everlog.daemon.api.session_lookup import ContinueHere, Limit, Offset, find_session
from everlog.daemon.error_responses import ERROR_RESPONSES, INVALID, HttpError
from everlog.model import AnyRecord, Compaction, Message, Rewind, Tombstone
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.requests import MAX_INTEGER, CancelRequest, CompactRequest, InboundMessage, NewMessage
from everlog.wire.responses import (
    AcceptedMessage,
    CancelResult,
    CompactionResult,
    DeleteResult,
    History,
    InboundResult,
    OmittedMessage,
    PreparedContext,
    RestoreResult,
    RunResult,
    record_object,
    record_objects,
)

_LISTED_TYPES = (Message, Compaction, Tombstone, Rewind)  # with `all=true`

_MESSAGE_PATH = "/sessions/{session_id:str}/messages/{seq:int}"
_ACCEPTED = {202: ResponseSpec(AcceptedMessage, generate_examples=False, description="Accepted.")}
_INBOUND_ACCEPTED = {202: ResponseSpec(InboundResult, generate_examples=False, description="Accepted.")}


class MessageRoutes(Controller):
    """Messages and turns."""

    path = "/api"
    tags = ("talk",)

    @post("/sessions/{session_id:str}/messages", status_code=200, responses=ERROR_RESPONSES | _ACCEPTED)
    async def send_message(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[NewMessage],
        wait: FromQuery[bool] = True,
        continue_here: ContinueHere = False,
    ) -> Response[RunResult]:
        """Send a message. Responds when the turn has ended, or with `wait=false` at once.

        The message is durable in either case. A second message waits in the queue. A message that
        is sent again with its `id` is answered once. A session of another program beside the store is
        answered only with `continueHere=true`: the answer is written to that program's file.
        """
        session = await find_session(runtime, session_id)
        run = await runtime.submit(session, data.content, id=data.id, cwd=data.cwd, continue_here=continue_here)
        if not wait:
            accepted = AcceptedMessage(run_id=run.id, position=run.position)
            # Its type is in the API document by `_ACCEPTED`.
            response: Response[Any] = Response(accepted, status_code=202)
            return response
        answer = await run.answer()
        messages = record_objects(answer.messages)
        return Response(RunResult(run_id=run.id, messages=messages, usage=answer.usage))

    @get("/sessions/{session_id:str}/messages", responses=ERROR_RESPONSES)
    async def list_messages(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        after: Offset = 0,
        limit: Limit = 100,
        everything: Annotated[bool, QueryParameter(name="all")] = False,
    ) -> History:
        """List the live messages after a seq, page by page.

        `all=true`: list the log instead, with deleted, rewound and summarised messages and with
        the markers; the cost is then proportional to the page.
        """
        session = await find_session(runtime, session_id)
        read = _log_records if everything else _live_messages
        page = await runtime.store.call(read, session.sync, after, limit + 1)
        has_more = len(page) > limit
        return History(messages=record_objects(page[:limit]), next=page[limit - 1].seq if has_more else None)

    @delete(_MESSAGE_PATH, status_code=200, responses=ERROR_RESPONSES)
    async def delete_message(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        seq: FromPath[int],
        continue_here: ContinueHere = False,
    ) -> DeleteResult:
        """Delete a message, with the tool calls and results that belong to it."""
        session = await find_session(runtime, session_id)
        marker = await runtime.edits.hide(session, _check_seq(seq), continue_here=continue_here)
        return DeleteResult(seq=marker.seq, deletes=marker.deletes)

    @post(f"{_MESSAGE_PATH}/restore", status_code=200, responses=ERROR_RESPONSES)
    async def restore_message(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        seq: FromPath[int],
        continue_here: ContinueHere = False,
    ) -> RestoreResult:
        """Restore a deleted message."""
        session = await find_session(runtime, session_id)
        marker = await runtime.edits.restore(session, _check_seq(seq), continue_here=continue_here)
        return RestoreResult(seq=marker.seq, restores=marker.restores)

    @post("/sessions/{session_id:str}/cancel", status_code=200, responses=ERROR_RESPONSES)
    async def cancel_run(
        self, runtime: NamedDependency[Runtime], session_id: FromPath[str], data: JSONBody[CancelRequest | None] = None
    ) -> CancelResult:
        """Cancel a turn or a queued message."""
        session = await find_session(runtime, session_id)
        run_id = data.run_id if data else ""
        return CancelResult(cancelled=await runtime.cancel(session.id, run_id))

    @get("/sessions/{session_id:str}/context", responses=ERROR_RESPONSES)
    async def get_context(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> PreparedContext:
        """Return the context of the next model call, also if it does not fit the model's window: `excess`."""
        session = await find_session(runtime, session_id)
        context = await runtime.context(session)
        return PreparedContext(
            messages=record_objects(context.messages),
            tokens=context.tokens,
            window=context.window,
            left_out=[OmittedMessage(seq=omitted.seq, why=omitted.why) for omitted in context.left_out],
            stale=list(context.stale),
            excess=context.excess,
        )

    @post("/sessions/{session_id:str}/compact", status_code=200, responses=ERROR_RESPONSES)
    async def compact_session(
        self,
        runtime: NamedDependency[Runtime],
        session_id: FromPath[str],
        data: JSONBody[CompactRequest | None] = None,
        continue_here: ContinueHere = False,
    ) -> CompactionResult:
        """Summarise the older part of a session; not during a turn.

        `dryRun=true`: nothing is written; `record` is the marker with the built-in summary.
        """
        session = await find_session(runtime, session_id)
        options = data or CompactRequest()
        if options.dry_run:
            outcome = await runtime.plan_compaction(session, focus=options.focus)
        else:
            outcome = await runtime.compact(session, focus=options.focus, continue_here=continue_here)
        record = None if outcome.record is None else record_object(outcome.record)
        return CompactionResult(**(asdict(outcome) | {"record": record}))

    @post("/inbound", status_code=200, responses=ERROR_RESPONSES | _INBOUND_ACCEPTED)
    async def submit_inbound(
        self, runtime: NamedDependency[Runtime], data: JSONBody[InboundMessage], wait: FromQuery[bool] = True
    ) -> Response[InboundResult]:
        """Submit a channel's message: it is routed by sender and place, queued and answered."""
        content = data.text if data.text is not None else data.content
        if content is None or (data.text is not None and data.content is not None):
            raise HttpError(400, INVALID, details=("/text: set either text or content",))
        delivery = await runtime.inbound(
            data.context.inbound(),
            content,
            id=data.id,
            session_key=data.session_key or "",
            new_chat=data.new_chat,
            cwd=data.cwd,
            system=data.system,
        )
        result = InboundResult(
            session_id=delivery.session.id,
            key=delivery.key,
            run_id=delivery.run.id,
            reply=(await delivery.run.answer()).reply.text if wait else None,
        )
        return Response(result, status_code=200 if wait else 202)


def _live_messages(session: Session, after: int, limit: int) -> list[AnyRecord]:
    """Return live messages after a seq. Reads the whole log: a later marker may affect them."""
    return list(islice((message for message in session.view().messages if message.seq > after), limit))


def _log_records(session: Session, after: int, limit: int) -> list[AnyRecord]:
    return list(islice((record for record in session.entries(after=after) if isinstance(record, _LISTED_TYPES)), limit))


def _check_seq(seq: int) -> int:
    if not 0 < seq <= MAX_INTEGER:
        raise HttpError(404, "Message not found", code="NotFoundError")
    return seq
