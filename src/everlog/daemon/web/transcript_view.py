"""Rows of the transcript for the templates, with rendered and truncated texts.

A long text is cut; `…/messages/{seq}?full=1` shows more of it. A text too large for a page, such as
megabytes in one line, is available as plain text: `…/messages/{seq}/text`.
"""

from __future__ import annotations

import base64
import binascii
import re

import msgspec
from markupsafe import Markup

from everlog.ids import epoch_ms
from everlog.model import AnyBlock, Compaction, File, Image, Message, OtherBlock, Text, Thinking, ToolCall
from everlog.render import html_text, humanize
from everlog.render.html_document import first_argument, format_arguments
from everlog.render.markdown_document import one_line
from everlog.render.page_window import NoteItem, PageItem, PageWindow, RemovedItem, SummaryItem
from everlog.render.transcript_items import CallWithResult, MessageItem

TEXT_CHARACTERS = 12_000
TOOL_CHARACTERS = 5_000  # of arguments and of a result
FULL_CHARACTERS = 300_000  # with `full=1`
ROLE_LABELS = {"user": "You", "assistant": "Agent", "toolResult": "Tool"}
# The first bytes of images; data that begins differently is not served.
IMAGE_SIGNATURES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


class BlockView(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a message, as the page shows it."""

    kind: str  # text, thinking, call, picture, aside
    html: Markup = Markup()
    cut: int = 0  # characters that are not shown
    # of a call
    id: str = ""
    name: str = ""
    brief: str = ""
    state: str = ""  # done, failed, running, none
    duration: str = ""
    result: Markup = Markup()
    result_cut: BlockView | None = None  # if the result is cut
    images: tuple[BlockView, ...] = ()  # in the result
    # of a picture: its message and index; of a call: the seq of its result
    seq: int = 0
    number: int = 0


class TranscriptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the transcript."""

    kind: str  # said, gone, note, fold, damaged
    seq: int
    part: PageItem
    speaker: str = ""
    role: str = ""
    sender: str = ""
    model: str = ""
    time: str = ""
    blocks: tuple[BlockView, ...] = ()
    fate: str = "live"
    offers_earlier: bool = False  # a fold: with a link to the messages before it


def transcript_rows(
    window: PageWindow, *, sender: str = "", running: int | None = None, full: bool = False
) -> list[TranscriptRow]:
    """Return the rows of a window. Calls after the seq `running` without a result are running."""
    rows = []
    for number, part in enumerate(window.items):
        if isinstance(part, MessageItem):
            rows.append(message_row(part, sender=sender, running=running, full=full))
        elif isinstance(part, RemovedItem):
            rows.append(TranscriptRow(kind="gone", seq=part.first_seq, part=part))
        elif isinstance(part, NoteItem):
            rows.append(TranscriptRow(kind="note", seq=part.seq, part=part, time=part.timestamp))
        elif isinstance(part, SummaryItem):
            following = window.items[number + 1 : number + 2]
            is_last = not (following and isinstance(following[0], SummaryItem))
            rows.append(_fold_row(part, is_last and not part.is_expanded and not window.is_first, full))
        else:
            rows.append(TranscriptRow(kind="damaged", seq=part.seq or 0, part=part))
    return rows


def message_row(
    part: MessageItem, *, sender: str = "", running: int | None = None, full: bool = False, fate: str = "live"
) -> TranscriptRow:
    """Return the row of a message."""
    message = part.message
    open_state = "running" if running is not None and message.seq > running else "none"
    blocks: list[BlockView] = []
    pictures = 0
    for block in part.blocks:
        if isinstance(block, Image):
            blocks.append(_picture_view(block, message.seq, pictures))
            pictures += 1
        elif isinstance(block, CallWithResult):
            blocks.append(_call_view(block, message, open_state, full))
        else:
            blocks.append(_block_view(block, message.role, full))
    other_sender = message.sender if message.sender and message.sender != sender else ""
    return TranscriptRow(
        kind="said",
        seq=message.seq,
        part=part,
        speaker=ROLE_LABELS[message.role],
        role=message.role,
        sender=one_line(other_sender or ""),
        model=one_line(message.model or ""),
        time=message.timestamp,
        blocks=tuple(blocks),
        fate=fate,
    )


def _block_view(block: AnyBlock, role: str, full: bool) -> BlockView:
    if isinstance(block, Text):
        show = html_text.render_markdown if role == "assistant" else html_text.render_plain
        text, cut = truncate(block.text, TEXT_CHARACTERS, full)
        return BlockView(kind="text", html=Markup(show(text)), cut=cut)
    if isinstance(block, Thinking):
        text, cut = truncate(block.thinking, TEXT_CHARACTERS, full)
        return BlockView(kind="thinking", html=Markup(html_text.render_plain(text)), cut=cut)
    if isinstance(block, File):
        return BlockView(kind="aside", name=f"File: {one_line(block.name or 'unnamed')[:200]}")
    kind = block.type if isinstance(block, OtherBlock) else type(block).__name__
    return BlockView(kind="aside", name=f"Block of kind {one_line(kind)[:100]}")


def _call_view(pair: CallWithResult, message: Message, open_state: str, full: bool) -> BlockView:
    argument_text, cut = truncate(format_arguments(pair.call), TOOL_CHARACTERS, full)
    result, duration, result_cut = Markup(), "", None
    images: tuple[BlockView, ...] = ()
    state = open_state
    if pair.result is not None:
        state = "failed" if pair.result.is_error else "done"
        text, cut_characters = truncate(pair.result.text, TOOL_CHARACTERS, full)
        result_cut = BlockView(kind="rest", cut=cut_characters) if cut_characters else None
        result = Markup(html_text.render_plain(text, "result")) if text else Markup()
        pictures = [block for block in pair.result.content if isinstance(block, Image)]
        seq = pair.result.seq
        images = tuple(_picture_view(block, seq, number) for number, block in enumerate(pictures))
        duration = _format_duration(message.timestamp, pair.result.timestamp)
    return BlockView(
        kind="call",
        seq=pair.result.seq if pair.result is not None else 0,
        id=pair.call.id,
        name=one_line(pair.call.name)[:100] or "tool",
        brief=first_argument(pair.call),
        state=state,
        duration=duration,
        html=Markup(html_text.highlight_code(argument_text, "json")) if pair.call.arguments else Markup(),
        result=result,
        result_cut=result_cut,
        images=images,
        cut=cut,
    )


def _fold_row(part: SummaryItem, offers_earlier: bool, full: bool) -> TranscriptRow:
    record: Compaction = part.record
    text, cut = truncate(record.summary, TEXT_CHARACTERS, full)
    block = BlockView(kind="text", html=Markup(html_text.render_markdown(text)), cut=cut)
    return TranscriptRow(
        kind="fold", seq=record.seq, part=part, time=record.timestamp, blocks=(block,), offers_earlier=offers_earlier
    )


def _picture_view(block: Image, seq: int, number: int) -> BlockView:
    head = _NOT_BASE64.sub("", block.data[:100])[:24]  # enough bytes for every signature
    if is_picture(block.mime_type, base64.b64decode(head + "=" * (-len(head) % 4))):
        return BlockView(kind="picture", seq=seq, number=number)
    return BlockView(kind="aside", name="Image that cannot be shown")


def message_text(message: Message) -> str:
    """Return all text of a message: its texts, thinking and tool calls."""
    texts = (
        block.text
        if isinstance(block, Text)
        else block.thinking
        if isinstance(block, Thinking)
        else f"{block.name} {format_arguments(block)}"
        for block in message.content
        if isinstance(block, Text | Thinking | ToolCall)
    )
    return "\n\n".join(texts)


def decode_picture(message: Message, number: int) -> tuple[str, bytes] | None:
    """Return type and bytes of the n-th image of a message; None if it is not a valid image."""
    blocks = [block for block in message.content if isinstance(block, Image)]
    if not 0 <= number < len(blocks):
        return None
    block = blocks[number]
    try:
        data = base64.b64decode(block.data, validate=False)
    except (binascii.Error, ValueError):
        return None
    return (block.mime_type, data) if is_picture(block.mime_type, data) else None


def is_picture(kind: str, data: bytes) -> bool:
    """Return whether bytes begin with the signature of a media type."""
    signature = IMAGE_SIGNATURES.get(kind)
    if signature is None or not data.startswith(signature):
        return False
    return signature != b"RIFF" or data[8:12] == b"WEBP"


def truncate(text: str, limit: int, full: bool) -> tuple[str, int]:
    """Return the text, cut if it is too long, and the number of characters cut."""
    limit = FULL_CHARACTERS if full else limit
    if len(text) <= limit * 1.2:
        return text, 0
    return text[:limit], len(text) - limit


def _format_duration(first: str, last: str) -> str:
    start, end = epoch_ms(first), epoch_ms(last)
    if start is None or end is None or end < start:
        return ""
    return humanize.duration(end - start)
