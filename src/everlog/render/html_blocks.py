"""The blocks of a message as HTML, the same on the page and in an exported document.

A subclass decides how images are shown, where a long text is cut, and what leads to the rest of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from everlog.model import AnyBlock, Image, Message, Text, Thinking
from everlog.render import humanize
from everlog.render.html_text import highlight_code, render_markdown, render_plain
from everlog.render.transcript_items import (
    MessageItem,
    Redact,
    ToolExchange,
    describe_arguments,
    describe_block,
    format_arguments,
)

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")


class HtmlBlocks:
    """Renders messages in full, with their images in them."""

    def __init__(self, redact: Redact = str) -> None:
        self._redact = redact

    def render(self, item: MessageItem) -> str:
        """Render all blocks of a message."""
        return "\n".join(self._render_blocks(item))

    def render_text(self, text: str, seq: int, *, is_markdown: bool) -> str:
        """Render a text of a message or a summary."""
        shown, rest = self.cut(self._redact(text), seq)
        return (render_markdown(shown) if is_markdown else render_plain(shown)) + rest

    def cut(self, text: str, seq: int, *, is_tool: bool = False) -> tuple[str, str]:
        """Return what is shown of a text, and the HTML that leads to the rest."""
        return text, ""

    def image(self, block: Image, seq: int, number: int) -> str:
        """Render the n-th image of a message."""
        if block.mime_type in IMAGE_TYPES and block.data and _BASE64.fullmatch(block.data):
            return f'<img alt="Image" src="data:{block.mime_type};base64,{block.data}">'
        return _render_aside(block)

    def call_attributes(self, item: MessageItem, exchange: ToolExchange) -> str:
        """Return further attributes of the element of a call."""
        return ""

    def call_state(self, item: MessageItem, exchange: ToolExchange) -> tuple[str, str]:
        """Return the class and the label for how a call ended."""
        return ("failed", "no result") if exchange.state == "open" else (exchange.state, exchange.state)

    def _render_blocks(self, item: MessageItem) -> Iterator[str]:
        message = item.message
        images = 0
        for block in item.blocks:
            if isinstance(block, Text):
                yield self.render_text(block.text, message.seq, is_markdown=message.role == "assistant")
            elif isinstance(block, Thinking):
                text = self.render_text(block.thinking, message.seq, is_markdown=False)
                yield f'<details class="thinking"><summary>Thinking</summary>{text}</details>'
            elif isinstance(block, ToolExchange):
                yield self._render_exchange(item, block)
            elif isinstance(block, Image):
                yield self.image(block, message.seq, images)
                images += 1
            else:
                yield _render_aside(block)

    def _render_exchange(self, item: MessageItem, exchange: ToolExchange) -> str:
        call = exchange.call
        kind, label = self.call_state(item, exchange)
        if exchange.elapsed_ms is not None:
            label += f" · {humanize.duration(exchange.elapsed_ms)}"
        name = escape(humanize.one_line(call.name)[:100] or "tool")
        brief = escape(describe_arguments(call.arguments, self._redact))
        head = f'<code>{name}</code> <span class="brief" dir="auto">{brief}</span> <span class="state">{label}</span>'
        body = ""
        if call.arguments:
            text, rest = self.cut(self._redact(format_arguments(call.arguments)), item.message.seq, is_tool=True)
            body = highlight_code(text, "json") + rest
        if exchange.result is not None:
            body += self._render_result(exchange.result)
        attributes = self.call_attributes(item, exchange)
        return f'<details class="call {kind}"{attributes}><summary>{head}</summary>\n{body}</details>'

    def _render_result(self, result: Message) -> str:
        text, rest = self.cut(self._redact(result.text), result.seq, is_tool=True)
        images = [block for block in result.content if isinstance(block, Image)]
        shown = render_plain(text, "result") if text else ""
        return shown + "".join(self.image(block, result.seq, number) for number, block in enumerate(images)) + rest


def _render_aside(block: AnyBlock) -> str:
    return f'<p class="aside dim">{escape(describe_block(block))}</p>'
