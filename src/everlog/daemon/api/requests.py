"""Typed request bodies, and the conversion of sessions and records to response bodies.

Unknown fields are refused, so that a misspelled field is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from litestar.params import QueryParameter
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from everlog.aio import AsyncSession
from everlog.daemon.error_responses import HttpError
from everlog.errors import InvalidIdError, NotFoundError
from everlog.identity.scope import Inbound
from everlog.log.line_codec import build_line, encode, has_crc
from everlog.model import AnyRecord, File, Image, Metadata, Text, Unknown
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import RecordObject, SessionSummary

MAX_INTEGER = 2**53 - 1  # the largest integer that JavaScript represents exactly

Limit = Annotated[int, QueryParameter(ge=1, le=500)]
Offset = Annotated[int, QueryParameter(ge=0, le=MAX_INTEGER)]
Seq = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
MessageContent = Annotated[str, Meta(min_length=1)] | Annotated[list[Text | Image | File], Meta(min_length=1)]


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of the request bodies."""


class NewSession(RequestBody, frozen=True, kw_only=True):
    """`POST /api/sessions`."""

    name: Name | UnsetType = UNSET
    system_prompt: str | UnsetType = UNSET
    agent: Name | UnsetType = UNSET
    sender: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET


class SessionUpdate(RequestBody, frozen=True, kw_only=True):
    """`PATCH /api/sessions/{id}`; a system prompt of null removes it."""

    name: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET
    system_prompt: str | UnsetType | None = UNSET


class NewMessage(RequestBody, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/messages`: text, or blocks."""

    content: MessageContent
    id: str = ""  # a message that is sent again with its id is answered once
    cwd: str | None = None  # the client's working directory


class CompactRequest(RequestBody, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/compact`."""

    focus: str = ""  # what the summary should focus on
    dry_run: bool = False  # return what would be recorded, with the built-in summary


class ForkRequest(RequestBody, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/fork`."""

    at: Seq | None = None  # the last shared record; None: the last of all


class RewindRequest(RequestBody, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/rewind`."""

    to_seq: Seq  # 0: to the start


class CancelRequest(RequestBody, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/cancel`."""

    run_id: str = ""  # empty: the current run


class InboundContext(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a channel's message comes from, as for `everlog route`; null counts as unset."""

    channel: str | None = None
    account: str | None = None
    chat_id: str | None = None
    chat_type: str | None = None
    topic_id: str | None = None
    space_id: str | None = None
    space_type: str | None = None
    sender_id: str | None = None
    mentioned: bool | None = None

    def inbound(self) -> Inbound:
        """Return the fields as the router takes them."""
        return Inbound(**{name: value for name, value in asdict(self).items() if value is not None})


class InboundMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /api/inbound`: a channel's message; `text`, or `content` for blocks."""

    context: InboundContext
    text: Annotated[str, Meta(min_length=1)] | None = None
    content: MessageContent | None = None
    id: str = ""  # a message that is delivered again with its id is answered once
    session_key: str | None = None
    new_chat: bool = False
    cwd: str | None = None
    system: bool = False


# --- responses ------------------------------------------------------------------------------


INVALID_SESSION_ID = "Invalid session ID"
SESSION_NOT_FOUND = "Session not found"


async def open_session(runtime: Runtime, name: str) -> AsyncSession:
    """Return a session by its id, key or alias.

    InvalidIdError for a name that no session has and that does not look like an id or a key.
    """
    try:
        return await runtime.store.session(name)
    except NotFoundError:
        if _ID_OR_KEY.fullmatch(name):
            raise
        raise InvalidIdError(
            f"not a session id or name: {name[:60]!r}", hint="ids are 26 characters, 0-9 and A-Z"
        ) from None


_ID_OR_KEY = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:agent:|sk_).*")


async def find_session(runtime: Runtime, quoted: str) -> AsyncSession:
    """Return the session that a path segment names, by its id, key or alias."""
    try:
        return await open_session(runtime, unquote_segment(quoted))
    except InvalidIdError as error:
        raise HttpError(400, INVALID_SESSION_ID, hint=error.hint, code="InvalidIdError") from error
    except NotFoundError as error:
        raise HttpError(404, SESSION_NOT_FOUND, code="NotFoundError") from error


def unquote_segment(segment: str) -> str:
    """Decode a percent-encoded path segment. Raises InvalidIdError if it is not UTF-8."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidIdError("the path is not UTF-8") from error


def set_fields(body: RequestBody, **names: str) -> dict[str, Any]:
    """Return the fields that a client set, under the store's names for them."""
    return {names.get(field, field): value for field, value in asdict(body).items() if value is not UNSET}


def summarize_session(runtime: Runtime, metadata: Metadata) -> SessionSummary:
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
    )


def record_object(record: AnyRecord) -> RecordObject:
    """Return a record as in its line, without the crc; a record outside the log has no seq.

    The result is raw JSON, which the encoder copies as it is.
    """
    line = record.line
    if not line:  # created or shortened for a context
        assert not isinstance(record, Unknown)
        _, body = encode(record)
        line = build_line(body, record.record_type, record.seq) if record.seq else body
    if has_crc(line):
        line = line[:-18] + b"}"
    return msgspec.Raw(line)  # type: ignore[return-value]


def record_objects(records: Iterable[AnyRecord]) -> list[RecordObject]:
    """Return records as in their lines, without the crc."""
    return [record_object(record) for record in records]
