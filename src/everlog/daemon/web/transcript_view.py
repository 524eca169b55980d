"""Messages as the session page shows them: long texts are cut, images are links.

`…/messages/{seq}?full=1` shows more of a long text. A text too large for a page, such as megabytes in
one line, is available as plain text: `…/messages/{seq}/text`.
"""

from __future__ import annotations

import base64
import binascii
import re
from html import escape

from everlog.model import Image, Message
from everlog.render.html_blocks import HtmlBlocks
from everlog.render.transcript_items import MessageItem, ToolExchange

TEXT_CHARACTERS = 12_000
TOOL_CHARACTERS = 5_000  # of arguments and of a result
FULL_CHARACTERS = 300_000  # with `full=1`
# The first bytes of images; data that begins differently is not served.
IMAGE_SIGNATURES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


class PageBlocks(HtmlBlocks):
    """Renders the blocks of messages for the page of the session at `address`.

    Calls after the seq `running` that have no result are running.
    """

    def __init__(self, address: str, *, running: int | None = None, full: bool = False) -> None:
        super().__init__()
        self._address = address
        self._running = running
        self._full = full

    def cut(self, text: str, seq: int, *, is_tool: bool = False) -> tuple[str, str]:
        """Cut a long text, with a link that shows more of it."""
        limit = FULL_CHARACTERS if self._full else TOOL_CHARACTERS if is_tool else TEXT_CHARACTERS
        if len(text) <= limit * 1.2:
            return text, ""
        path, more = f"{self._address}/messages/{seq}", f"{len(text) - limit:,} more characters"
        if self._full:
            link = f'<a href="{path}/text" target="_blank" rel="noopener">Show as plain text: {more}</a>'
        else:
            link = f'<a href="{path}?full=1" data-full="{seq}">Show all: {more}</a>'
        return text[:limit], f'<p class="cut">{link}</p>'

    def image(self, block: Image, seq: int, number: int) -> str:
        """Render an image as a link to it, if it can be shown."""
        head = _NOT_BASE64.sub("", block.data[:100])[:24]  # enough bytes for every signature
        if not is_picture(block.mime_type, base64.b64decode(head + "=" * (-len(head) % 4))):
            return '<p class="aside dim">Image that cannot be shown</p>'
        source = f"{self._address}/pictures/{seq}/{number}"
        image = f'<img src="{source}" alt="Image in message {seq}" loading="lazy">'
        return f'<a class="picture" href="{source}">{image}</a>'

    def call_attributes(self, item: MessageItem, exchange: ToolExchange) -> str:
        """Return the anchor of a call's result, and its id for events."""
        anchor = f' id="m{exchange.result.seq}"' if exchange.result is not None and item.fate == "live" else ""
        return f'{anchor} data-call-id="{escape(exchange.call.id)}"'

    def call_state(self, item: MessageItem, exchange: ToolExchange) -> tuple[str, str]:
        """Return how a call ended, or that it runs."""
        if exchange.state != "open":
            return exchange.state, exchange.state
        is_running = self._running is not None and item.message.seq > self._running
        return ("running", "running") if is_running else ("none", "no result")


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
