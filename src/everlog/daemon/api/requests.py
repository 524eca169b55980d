"""What clients send, typed; and how sessions and records become answers.

Unknown fields are refused: a client that misspells one should learn of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from litestar.params import QueryParameter
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from everlog.aio import AsyncSession
from everlog.daemon.error_responses import Refused
from everlog.errors import InvalidIdError, NotFoundError
from everlog.identity.scope import Inbound
from everlog.log.line_codec import encode, has_crc, seal
from everlog.model import AnyRecord, File, Image, Metadata, Text, Unknown
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import RecordObject, Summary

LARGEST = 2**53 - 1  # the whole numbers that every client can hold

Limit = Annotated[int, QueryParameter(ge=1, le=500)]
Offset = Annotated[int, QueryParameter(ge=0, le=LARGEST)]
Seq = Annotated[int, Meta(ge=0, le=LARGEST)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
Said = Annotated[str, Meta(min_length=1)] | Annotated[list[Text | Image | File], Meta(min_length=1)]


class Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Something that a client asks for."""


class NewSession(Asked, frozen=True, kw_only=True):
    """`POST /api/sessions`."""

    name: Name | UnsetType = UNSET
    system_prompt: str | UnsetType = UNSET
    agent: Name | UnsetType = UNSET
    sender: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET


class Change(Asked, frozen=True, kw_only=True):
    """`PATCH /api/sessions/{id}`; a system prompt of null takes it back."""

    name: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET
    system_prompt: str | UnsetType | None = UNSET


class NewMessage(Asked, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/messages`: text, or blocks."""

    content: Said
    cwd: str | None = None  # the client's working directory


class Focus(Asked, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/compact`."""

    focus: str = ""  # what the summary should keep above all
    dry_run: bool = False  # only say what would be recorded, with the built-in summary


class ForkAt(Asked, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/fork`."""

    at: Seq | None = None  # the last record that is shared; None: all are


class RewindTo(Asked, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/rewind`."""

    to_seq: Seq  # 0: to the start


class CancelRun(Asked, frozen=True, kw_only=True):
    """`POST /api/sessions/{id}/cancel`."""

    run_id: str = ""  # empty: the one that is running


class Where(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a channel says about a message, as for `everlog route`; null counts as not given."""

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
        """The same for routing."""
        return Inbound(**{name: one for name, one in asdict(self).items() if one is not None})


class NewInbound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /api/inbound`: a channel's message; `text`, or `content` for blocks."""

    context: Where
    text: Annotated[str, Meta(min_length=1)] | None = None
    content: Said | None = None
    session_key: str | None = None
    new_chat: bool = False
    cwd: str | None = None
    system: bool = False


# --- answers --------------------------------------------------------------------------------


NO_ID = "Invalid session ID"
NO_SESSION = "Session not found"


async def find(runtime: Runtime, quoted: str) -> AsyncSession:
    """The session that a path names: by id, key, alias, or the beginning of an id."""
    try:
        return await runtime.store.session(unquoted(quoted))
    except InvalidIdError as error:
        raise Refused(400, NO_ID, hint=error.hint, code="InvalidIdError") from error
    except NotFoundError as error:
        raise Refused(404, NO_SESSION, code="NotFoundError") from error


def unquoted(segment: str) -> str:
    """A segment of a path as it was meant."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidIdError("the path is not UTF-8") from error


def given(asked: Asked, **names: str) -> dict[str, Any]:
    """The fields that a client gave, under the names that the store has for them."""
    return {
        names.get(field, field): value
        for field, value in asdict(asked).items()
        if value is not UNSET
    }


def summary(runtime: Runtime, metadata: Metadata) -> Summary:
    """A session as a listing shows it."""
    return Summary(
        id=metadata.id,
        name=metadata.title,
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
    """A record as its line has it, without the crc; one outside of the log has no seq.

    Bytes that are JSON already: what is encoded takes them as they are.
    """
    line = record.line
    if not line:  # made for a context, or shortened for it
        assert not isinstance(record, Unknown)
        _, body = encode(record)
        line = seal(body, record.record_type, record.seq) if record.seq else body
    if has_crc(line):
        line = line[:-18] + b"}"
    return msgspec.Raw(line)  # type: ignore[return-value]


def record_objects(records: Iterable[AnyRecord]) -> list[RecordObject]:
    """Several of them."""
    return [record_object(record) for record in records]
