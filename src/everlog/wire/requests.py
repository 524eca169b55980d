"""Typed requests to the daemon: bodies of HTTP requests, and messages to the event stream.

Unknown fields of a body are refused, so that a misspelled field is an error.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from everlog.identity.scope import Inbound
from everlog.model import MAX_NOTE_LENGTH, Category, File, Image, Text
from everlog.wire.events import snake_case

MAX_INTEGER = 2**53 - 1  # the largest integer that JavaScript represents exactly

Seq = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
NonEmpty = Annotated[str, Meta(min_length=1)]
MessageContent = NonEmpty | Annotated[list[Text | Image | File], Meta(min_length=1)]


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
    text: NonEmpty | None = None
    content: MessageContent | None = None
    id: str = ""  # a message that is delivered again with its id is answered once
    session_key: str | None = None
    new_chat: bool = False
    cwd: str | None = None
    system: bool = False


class NewNote(RequestBody, frozen=True, kw_only=True):
    """`POST /api/memory`."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_NOTE_LENGTH)]
    category: Category | None = None
    name: Annotated[str, Meta(max_length=200)] = ""
    description: Annotated[str, Meta(max_length=1_000)] = ""


class NoteRevision(NewNote, frozen=True, kw_only=True):
    """`PUT /api/memory/{file}`: the whole note; unset fields are derived from its text."""

    version: str = ""  # as it was read; empty: overwrite any version


class DreamRequest(RequestBody, frozen=True, kw_only=True):
    """`POST /api/memory/dream`."""

    force: bool = False  # even if no dream is due
    dry_run: bool = False  # only report what would change


# --- the event stream ---


class StreamRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag=snake_case):
    """Base of the messages that a client sends to `/ws`; unknown fields are ignored."""


class Watch(StreamRequest, frozen=True, kw_only=True):
    """Report changes to the listing."""


class SessionRequest(StreamRequest, frozen=True, kw_only=True):
    """Base of the messages about one session."""

    session_id: str


class SendMessage(SessionRequest, frozen=True, kw_only=True):
    """Send a message to a session, and follow the session."""

    content: MessageContent
    id: str = ""
    cwd: str | None = None
    continue_here: bool = False  # also in a session of another program beside the store


class Cancel(SessionRequest, frozen=True, kw_only=True):
    """Cancel a turn or a queued message."""

    run_id: str


class Subscribe(SessionRequest, frozen=True, kw_only=True):
    """Follow a session."""

    after: Seq | None = None  # also replay the messages after this seq


class Unsubscribe(SessionRequest, frozen=True, kw_only=True):
    """Stop following a session."""


STREAM_REQUESTS: dict[str, type[StreamRequest]] = {
    str(request.__struct_config__.tag): request for request in (Watch, SendMessage, Cancel, Subscribe, Unsubscribe)
}
