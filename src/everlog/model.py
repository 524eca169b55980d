"""The data model: blocks, records and metadata.

All are frozen. A record that was read keeps the bytes of its line (`line`), so that keys and
kinds unknown to this version survive. A record that is not stored yet has `seq` 0: the store
assigns the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

SCHEMA_VERSION = 1
LINE_KEY = "\x7fline"

Seq = Annotated[int, msgspec.Meta(ge=0)]
Number = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]  # one that any index can hold
Role = Literal["user", "assistant", "toolResult"]
Category = Literal["preference", "project", "pattern", "decision", "constraint"]  # of a fact
MAX_NOTE_LENGTH = 20_000  # characters of a note in a memory


# --- blocks ---------------------------------------------------------------------------------


class Block(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="type", gc=False):
    """A part of a message's content."""


class Text(Block, frozen=True, tag="text", gc=False):
    """Plain text."""

    text: str


class ToolCall(Block, frozen=True, tag="toolCall", gc=False):
    """A request by the model to run a tool."""

    id: str
    name: str
    arguments: dict[str, Any]
    signature: str | None = None  # opaque; must be sent back to the provider


class Thinking(Block, frozen=True, tag="thinking", gc=False):
    """Reasoning that a model shows; the signature is its provider's."""

    thinking: str
    signature: str | None = None
    id: str | None = None  # the provider's


class Image(Block, frozen=True, tag="image", gc=False):
    """A picture, base64 in `data` or elsewhere at `url`."""

    mime_type: str = ""
    data: str = ""
    url: str | None = None


class File(Block, frozen=True, tag="file", gc=False):
    """An attached file, base64 in `data` or elsewhere at `url`."""

    name: str = ""
    mime_type: str = ""
    data: str = ""
    url: str | None = None


class OtherBlock:
    """A block of a kind unknown to this version, kept whole."""

    # Not a Struct: msgspec has no union of tagged kinds and "anything else".
    __slots__ = ("data",)

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OtherBlock) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return f"OtherBlock({self.data!r})"

    @property
    def type(self) -> str:
        """The kind, as its writer named it."""
        return str(self.data.get("type", ""))


KnownBlock = Text | ToolCall | Thinking | Image | File
if TYPE_CHECKING:
    AnyBlock = KnownBlock | OtherBlock
else:
    AnyBlock = KnownBlock  # what the fast decoder accepts; log.line_codec adds the others


# --- records --------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The tokens and cost of one model call, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0


class Record(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="recordType", gc=False
):
    """One logical item of a log."""

    schema_version: Literal[1] = 1  # another one is read as Unknown
    seq: Seq = 0
    # Given by the caller, it makes a retry exactly-once. In the file it directly follows seq.
    id: str = ""
    # The bytes this record was decoded from; never written, though msgspec needs a name for it.
    line: bytes = msgspec.field(default=b"", name=LINE_KEY)

    record_type: ClassVar[str] = ""


# Sender of a user message that no person wrote (an environment, the body of a command). In brackets, so that
# it is not a name that somebody has in a channel.
PROGRAM = "<program>"


class Message(Record, frozen=True, kw_only=True, tag="message", gc=False):
    """A message of a user or a model, or the result of a tool."""

    role: Role
    content: tuple[AnyBlock, ...]
    tool_call_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    sender: str | None = None  # PROGRAM: the program that recorded it wrote it in the user's name
    cwd: str | None = None
    run_id: str | None = None  # of the turn that this message started
    timestamp: str = ""
    auto_injected: bool = False  # made for one run; never stored

    record_type: ClassVar[str] = "message"

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))

    @property
    def is_typed(self) -> bool:
        """Whether it is a user's message that no program inserted in the user's name."""
        return self.role == "user" and self.sender != PROGRAM

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls among its blocks."""
        return tuple(block for block in self.content if isinstance(block, ToolCall))


class Compaction(Record, frozen=True, kw_only=True, tag="compaction", gc=False):
    """A summary that stands for all messages before `first_kept_seq`."""

    # With factories these fields are written also when they have their defaults: readers of the
    # specification rely on them.
    strategy: str = msgspec.field(default_factory=lambda: "structured")
    first_kept_seq: Seq
    summary: str
    tokens_before: int = msgspec.field(default_factory=lambda: 0)
    read_files: tuple[str, ...] = msgspec.field(default_factory=lambda: ())
    modified_files: tuple[str, ...] = msgspec.field(default_factory=lambda: ())
    timestamp: str = ""

    record_type: ClassVar[str] = "compaction"


class Tombstone(Record, frozen=True, kw_only=True, tag="tombstone", gc=False):
    """Hides messages or shows them again; the last tombstone for a seq wins."""

    deletes: tuple[Seq, ...] = ()
    restores: tuple[Seq, ...] = ()
    timestamp: str = ""

    record_type: ClassVar[str] = "tombstone"


class Rewind(Record, frozen=True, kw_only=True, tag="rewind", gc=False):
    """Removes the messages after `to_seq` from the view."""

    to_seq: Seq
    timestamp: str = ""

    record_type: ClassVar[str] = "rewind"


class Meta(Record, frozen=True, kw_only=True, tag="meta", gc=False):
    """Changes metadata key by key; null removes a key."""

    set: dict[str, Any]
    timestamp: str = ""

    record_type: ClassVar[str] = "meta"


class Event(Record, frozen=True, kw_only=True, tag="event", gc=False):
    """Something that happened; logged, never part of a context."""

    kind: str
    data: dict[str, Any] = {}
    timestamp: str = ""

    record_type: ClassVar[str] = "event"


# Kinds of event that change metadata.
TURN_END = "turn_end"  # with the duration and usage of the turn
TURN_RESUMED = "turn_resumed"  # a turn without an input of its own began
TURN_INTERRUPTED = "turn_interrupted"  # its process ended before the turn did
QUEUED = "queued"  # a message that waits for its turn, in the event
WITHDRAWN = "withdrawn"  # a queued message that was cancelled
USAGE = "usage"  # of an answer before it that was stored without its usage
REREAD = "reread"  # a foreign file is read again from its beginning


class Unknown(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A record of an unknown kind or a newer schema version."""

    record_type: str
    schema_version: int = SCHEMA_VERSION
    seq: Seq = 0
    id: str = ""
    timestamp: str = ""
    line: bytes = msgspec.field(default=b"", name=LINE_KEY)


class Damaged(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """A range of bytes that is not a record, in the place of the record."""

    file: str
    start: int
    end: int
    problem: str
    seq: int | None = None


KnownRecord = Message | Compaction | Tombstone | Rewind | Meta | Event
AnyRecord = KnownRecord | Unknown
Entry = AnyRecord | Damaged
MARKERS = (Tombstone, Rewind, Compaction)


# --- builders -------------------------------------------------------------------------------

Content = str | Sequence[AnyBlock | Mapping[str, Any]]


def blocks(content: Content) -> tuple[AnyBlock, ...]:
    """Return blocks from a string, from blocks, or from their JSON objects."""
    if isinstance(content, str):
        return (Text(content),)
    return tuple(
        _block(item) if isinstance(item, Mapping) else item  # blocks stay as they are
        for item in content
    )


def _block(data: Mapping[str, Any]) -> AnyBlock:
    try:
        known: KnownBlock = msgspec.convert(data, KnownBlock)
        return known
    except msgspec.ValidationError:
        return OtherBlock(dict(data))


def user(
    content: Content,
    *,
    id: str = "",
    sender: str | None = None,
    cwd: str | None = None,
    run_id: str | None = None,
    timestamp: str = "",
    auto_injected: bool = False,
) -> Message:
    """Make a message from the user; with an `id`, a retried append stores it once."""
    return Message(
        role="user",
        content=blocks(content),
        id=id,
        sender=sender,
        cwd=cwd,
        run_id=run_id,
        timestamp=timestamp,
        auto_injected=auto_injected,
    )


def assistant(
    content: Content,
    *,
    id: str = "",
    model: str | None = None,
    usage: Usage | None = None,
    stop_reason: str | None = None,
    timestamp: str = "",
) -> Message:
    """Make a message from the model."""
    return Message(
        role="assistant",
        content=blocks(content),
        id=id,
        model=model,
        usage=usage,
        stop_reason=stop_reason,
        timestamp=timestamp,
    )


def tool_result(
    tool_call_id: str,
    content: Content,
    *,
    is_error: bool = False,
    tool_name: str | None = None,
    id: str = "",
    timestamp: str = "",
) -> Message:
    """Make the result of a tool call."""
    return Message(
        role="toolResult",
        content=blocks(content),
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        is_error=is_error,
        id=id,
        timestamp=timestamp,
    )


# --- metadata -------------------------------------------------------------------------------


class Through(msgspec.Struct, frozen=True, gc=False):
    """The log position that derived data covers."""

    part: int = 1
    bytes: int = 0
    seq: int = 0


class Tokens(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Token sums over the turns of a session."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class Metrics(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Sums over the `turn_end` events of a session."""

    session_id: str = ""
    total_turns: int = 0
    total_tokens: Tokens = Tokens()
    total_tool_calls: int = 0
    total_duration_ms: int = 0
    total_cost: float = 0.0


class UsageRow(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Usage on one day with one model."""

    day: str  # UTC, such as 2026-11-16
    model: str  # empty: unknown
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0  # without cached ones
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0  # in dollars, as the provider stated it; 0: not stated

    @property
    def tokens(self) -> int:
        """All tokens, cached ones included."""
        cached = self.cache_read_tokens + self.cache_write_tokens
        return self.input_tokens + self.output_tokens + cached


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """The metadata of a session, derived from its log."""

    id: str
    title: str | None = msgspec.field(default=None, name="name")  # "name" in files and JSON
    created_at: str = ""  # the time in the id
    last_message_at: str = ""
    model: str = ""  # as chosen, else that of the last answer
    model_chosen: bool = False
    message_count: int = 0  # message records, live or not
    source: str = "interactive"
    cron_job_id: str | None = None
    system_prompt_override: str | None = None
    agent: str = "main"
    sender: str = "user"
    key: str | None = None
    aliases: tuple[str, ...] = ()
    generations: dict[str, Number] = {}  # claim counter of the key and of each alias
    scope: dict[str, Any] | None = None
    chat: Number | None = None  # its number under its key, or among those of its pair
    current: Number | None = None  # claim counter of the pair: the highest is the current chat
    uptime_secs: int = 0
    metrics: Metrics = Metrics()
    spent: tuple[UsageRow, ...] = ()  # by day and model, up to the last input
    spending: tuple[UsageRow, ...] = ()  # since then; the end of a turn may correct it
    forked_from: dict[str, Any] | None = None
    promoted_from: dict[str, Any] | None = None  # the session whose history it took over
    promoted_to: dict[str, Any] | None = None  # the session that took this one's history over
    run: str | None = None  # the id of the turn that has not ended
    waiting: tuple[str, ...] = ()  # ids of queued messages, in order
    newest_schema: int = SCHEMA_VERSION  # above ours: the session is read-only
    through: Through = Through()
    extra: dict[str, Any] = {}  # keys that other programs wrote

    @property
    def display_title(self) -> str:
        """The title, or a placeholder while there is none."""
        return self.title or "New Session"

    @property
    def unfinished(self) -> bool:
        """Whether a turn has not ended, or messages are queued."""
        return self.run is not None or bool(self.waiting)

    @property
    def resume_command(self) -> str:
        """The shell command that continues the session in its own program; empty if it has none."""
        import shlex  # noqa: PLC0415 - few callers

        command, cwd = self.extra.get("resume"), self.extra.get("cwd")
        if not isinstance(command, list | tuple):
            return f"everlog chat --resume {self.id}"
        folder = f"cd {shlex.quote(cwd)} && " if isinstance(cwd, str) and cwd else ""
        return folder + shlex.join(map(str, command)) if command else ""

    @property
    def thread(self) -> str:
        """The name its chats are numbered under: the key, or the pair of agent and sender."""
        return self.key or pair(self.agent, self.sender)

    @property
    def names(self) -> tuple[str, ...]:
        """The key and the aliases: all names that resolve to the session."""
        return ((self.key,) if self.key else ()) + self.aliases


def pair(agent: str, sender: str) -> str:
    """Return agent and sender as one name. It contains a NUL, which no key or alias can."""
    return f"{agent}\0{sender}"


SETTABLE = frozenset(
    {
        "name",
        "model",
        "source",
        "cronJobId",
        "systemPromptOverride",
        "agent",
        "sender",
        "key",
        "aliases",
        "generations",
        "scope",
        "chat",
        "current",
        "forkedFrom",
        "promotedFrom",
        "promotedTo",
    }
)


class Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """One file of a log."""

    file: str
    bytes: int
    first_seq: int | None
    last_seq: int | None
