"""Parts of a session as the templates take them: every text is HTML already, and short enough.

A text that is very long is cut; its end is asked for by `…/messages/{seq}?full=1`. What no page
can show, megabytes in a line, is there as plain text: `…/messages/{seq}/text`.
"""

from __future__ import annotations

import base64
import binascii
import re

import msgspec
from markupsafe import Markup

from everlog.ids import epoch_ms
from everlog.model import (
    AnyBlock,
    Compaction,
    File,
    Image,
    Message,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
)
from everlog.render import html_text, humanize
from everlog.render.html_document import arguments, brief
from everlog.render.markdown_document import one_line
from everlog.render.page_window import Fold, Gone, Leaf, Note, Part
from everlog.render.transcript_items import Call, Said

LONG = 12_000  # characters of a text
RESULT = 5_000  # characters of arguments and of a result
WHOLE = 300_000  # characters of one that somebody wants to see whole; more is a document
WHO = {"user": "You", "assistant": "Agent", "toolResult": "Tool"}
# What a picture begins with: nothing else is served as one.
PICTURES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


class Bit(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message."""

    kind: str  # text, thinking, call, picture, aside
    html: Markup = Markup()
    cut: int = 0  # characters that are not shown
    # of a call
    id: str = ""
    name: str = ""
    brief: str = ""
    state: str = ""  # done, failed, running, none
    took: str = ""
    result: Markup = Markup()
    rest: Bit | None = None  # what is not shown of the result
    bits: tuple[Bit, ...] = ()  # pictures of the result
    # of a picture: where it is; of a call: that of its result
    seq: int = 0
    number: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the transcript."""

    kind: str  # said, gone, note, fold, damaged
    seq: int
    part: Part
    who: str = ""
    role: str = ""
    sender: str = ""
    model: str = ""
    time: str = ""
    bits: tuple[Bit, ...] = ()
    fate: str = "live"
    asks: bool = False  # a fold: what is before it must be asked for


def rows(
    leaf: Leaf, *, sender: str = "", running: int | None = None, full: bool = False
) -> list[Row]:
    """The parts of a leaf. `running`: calls behind this seq that have no result are under way."""
    made = []
    for number, part in enumerate(leaf.parts):
        if isinstance(part, Said):
            made.append(said(part, sender=sender, running=running, full=full))
        elif isinstance(part, Gone):
            made.append(Row(kind="gone", seq=part.first, part=part))
        elif isinstance(part, Note):
            made.append(Row(kind="note", seq=part.seq, part=part, time=part.timestamp))
        elif isinstance(part, Fold):
            further = leaf.parts[number + 1 : number + 2]
            last = not (further and isinstance(further[0], Fold))
            made.append(_fold(part, last and not part.before and not leaf.first, full))
        else:
            made.append(Row(kind="damaged", seq=part.seq or 0, part=part))
    return made


def said(
    part: Said,
    *,
    sender: str = "",
    running: int | None = None,
    full: bool = False,
    fate: str = "live",
) -> Row:
    """A message."""
    message = part.message
    open_state = "running" if running is not None and message.seq > running else "none"
    bits: list[Bit] = []
    pictures = 0
    for block in part.blocks:
        if isinstance(block, Image):
            bits.append(_picture(block, message.seq, pictures))
            pictures += 1
        elif isinstance(block, Call):
            bits.append(_call(block, message, open_state, full))
        else:
            bits.append(_block(block, message.role, full))
    who = message.sender if message.sender and message.sender != sender else ""
    return Row(
        kind="said",
        seq=message.seq,
        part=part,
        who=WHO[message.role],
        role=message.role,
        sender=one_line(who or ""),
        model=one_line(message.model or ""),
        time=message.timestamp,
        bits=tuple(bits),
        fate=fate,
    )


def _block(block: AnyBlock, role: str, full: bool) -> Bit:
    if isinstance(block, Text):
        show = html_text.rendered if role == "assistant" else html_text.plain
        text, cut = shortened(block.text, LONG, full)
        return Bit(kind="text", html=Markup(show(text)), cut=cut)
    if isinstance(block, Thinking):
        text, cut = shortened(block.thinking, LONG, full)
        return Bit(kind="thinking", html=Markup(html_text.plain(text)), cut=cut)
    if isinstance(block, File):
        return Bit(kind="aside", name=f"A file: {one_line(block.name or 'without a name')[:200]}")
    kind = block.type if isinstance(block, OtherBlock) else type(block).__name__
    return Bit(kind="aside", name=f"A block of kind {one_line(kind)[:100]}")


def _call(one: Call, message: Message, open_state: str, full: bool) -> Bit:
    given, cut = shortened(arguments(one.call), RESULT, full)
    result, took, rest = Markup(), "", None
    bits: tuple[Bit, ...] = ()
    state = open_state
    if one.result is not None:
        state = "failed" if one.result.is_error else "done"
        text, more = shortened(one.result.text, RESULT, full)
        rest = Bit(kind="rest", cut=more) if more else None
        result = Markup(html_text.plain(text, "result")) if text else Markup()
        pictures = [block for block in one.result.content if isinstance(block, Image)]
        seq = one.result.seq
        bits = tuple(_picture(block, seq, number) for number, block in enumerate(pictures))
        took = _between(message.timestamp, one.result.timestamp)
    return Bit(
        kind="call",
        seq=one.result.seq if one.result is not None else 0,
        id=one.call.id,
        name=one_line(one.call.name)[:100] or "a tool",
        brief=brief(one.call),
        state=state,
        took=took,
        html=Markup(html_text.coloured(given, "json")) if one.call.arguments else Markup(),
        result=result,
        rest=rest,
        bits=bits,
        cut=cut,
    )


def _fold(part: Fold, asks: bool, full: bool) -> Row:
    record: Compaction = part.record
    text, cut = shortened(record.summary, LONG, full)
    bit = Bit(kind="text", html=Markup(html_text.rendered(text)), cut=cut)
    return Row(
        kind="fold",
        seq=record.seq,
        part=part,
        time=record.timestamp,
        bits=(bit,),
        asks=asks,
    )


def _picture(block: Image, seq: int, number: int) -> Bit:
    letters = _NOT_BASE64.sub("", block.data[:100])[:24]  # whole bytes, enough for every beginning
    if begins_as(block.mime_type, base64.b64decode(letters + "=" * (-len(letters) % 4))):
        return Bit(kind="picture", seq=seq, number=number)
    return Bit(kind="aside", name="A picture, which is not shown")


def whole_text(message: Message) -> str:
    """Everything that a message says, and asks of tools."""
    texts = (
        block.text
        if isinstance(block, Text)
        else block.thinking
        if isinstance(block, Thinking)
        else f"{block.name} {arguments(block)}"
        for block in message.content
        if isinstance(block, Text | Thinking | ToolCall)
    )
    return "\n\n".join(texts)


def picture(message: Message, number: int) -> tuple[str, bytes] | None:
    """The n-th picture of a message, if its bytes are those of one."""
    blocks = [block for block in message.content if isinstance(block, Image)]
    if not 0 <= number < len(blocks):
        return None
    block = blocks[number]
    try:
        data = base64.b64decode(block.data, validate=False)
    except (binascii.Error, ValueError):
        return None
    return (block.mime_type, data) if begins_as(block.mime_type, data) else None


def begins_as(kind: str, data: bytes) -> bool:
    """Whether bytes begin as a picture of a kind does."""
    begin = PICTURES.get(kind)
    if begin is None or not data.startswith(begin):
        return False
    return begin != b"RIFF" or data[8:12] == b"WEBP"


def shortened(text: str, most: int, full: bool) -> tuple[str, int]:
    """The beginning of a text that is too long, and how many characters are left out."""
    most = WHOLE if full else most
    if len(text) <= most * 1.2:
        return text, 0
    return text[:most], len(text) - most


def _between(first: str, last: str) -> str:
    start, end = epoch_ms(first), epoch_ms(last)
    if start is None or end is None or end < start:
        return ""
    return humanize.lasted(end - start)
