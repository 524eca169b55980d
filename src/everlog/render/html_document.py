"""A session as one self-contained HTML file: no script, no font, no network.

All content is escaped. Markdown is rendered with raw HTML disabled and remote images omitted, so
opening the file makes no request. Tool calls and thinking are collapsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from importlib.resources import files

import msgspec

from everlog.model import Compaction, Entry, File, Image, Metadata, OtherBlock, Text, Thinking, ToolCall
from everlog.render.html_text import highlight_code, render_markdown, render_plain
from everlog.render.markdown_document import one_line
from everlog.render.transcript_items import CallWithResult, MessageItem, Redact, build_items

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_ROLE_LABELS = {"user": "You", "assistant": "Agent", "toolResult": "Tool"}
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{details}</p>
</header>
<main>
"""


def build_html_document(metadata: Metadata, entries: Iterable[Entry], redact: Redact = str) -> str:
    """Build the HTML document of a session."""
    labels = [metadata.agent, metadata.model]
    times = [metadata.created_at, metadata.last_message_at]
    head = _HEAD.format(
        title=escape(one_line(redact(metadata.display_title))),
        style=stylesheet(),
        policy=CONTENT_SECURITY_POLICY,
        details=" · ".join(
            [*(escape(one_line(label)) for label in labels if label), *(_render_time(time) for time in times if time)]
        ),
    )
    body = (line for item in build_items(entries) for line in _render_item(item, redact))
    return head + "\n".join(body) + "\n</main>\n</body>\n</html>\n"


@cache
def stylesheet() -> str:
    """Return the style sheet, including highlighted code in light and dark themes."""
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415 - only for pages

    light = HtmlFormatter(style="default", cssclass="code").get_style_defs(".code")  # type: ignore[no-untyped-call]
    dark = HtmlFormatter(style="github-dark", cssclass="code").get_style_defs(".code")  # type: ignore[no-untyped-call]
    rules = (files("everlog.render") / "style.css").read_text(encoding="utf-8")
    return f"{rules}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _render_item(item: MessageItem | Compaction, redact: Redact) -> Iterator[str]:
    if isinstance(item, Compaction):
        yield f'<section class="summary" id="m{item.seq}">'
        yield "<details><summary>Summary for the model of all messages before"
        yield f"{item.first_kept_seq}</summary>"
        yield render_markdown(redact(item.summary))
        yield "</details></section>"
        return
    message = item.message
    kind = escape(message.role)
    yield f'<article class="{kind}" id="m{message.seq}">'
    yield f'<p class="who"><b>{_ROLE_LABELS[message.role]}</b> <a href="#m{message.seq}">'
    yield f"{_render_time(message.timestamp)}</a></p>"
    for block in item.blocks:
        if isinstance(block, Text):
            yield (
                render_markdown(redact(block.text)) if message.role == "assistant" else render_plain(redact(block.text))
            )
        elif isinstance(block, Thinking):
            text = render_plain(redact(block.thinking))
            yield f"<details><summary>Thinking</summary>{text}</details>"
        elif isinstance(block, CallWithResult):
            yield from _render_call(block, redact)
        elif isinstance(block, Image):
            yield _render_image(block)
        elif isinstance(block, File):
            yield f"<p><i>{escape(one_line(block.name or 'File'))}</i></p>"
        elif isinstance(block, OtherBlock):
            yield f"<p><i>Block of kind {escape(one_line(block.type))}</i></p>"
    yield "</article>"


def _render_call(pair: CallWithResult, redact: Redact) -> Iterator[str]:
    state = "failed" if pair.has_failed else "done"
    brief = escape(first_argument(pair.call, redact))
    yield f'<details class="call {state}"><summary><code>{escape(pair.call.name)}</code> {brief}'
    yield f'<span class="state">{state}</span></summary>'
    yield highlight_code(redact(format_arguments(pair.call)), "json")
    if pair.result is not None:
        yield render_plain(redact(pair.result.text), "result")
        images = (block for block in pair.result.content if isinstance(block, Image))
        yield from map(_render_image, images)
    yield "</details>"


def first_argument(call: ToolCall, redact: Redact = str) -> str:
    """Return the first text argument, which usually says what a call does, shortened."""
    first = next((value for value in call.arguments.values() if isinstance(value, str)), "")
    text = one_line(redact(first[:400]))
    return text if len(text) <= 80 else f"{text[:79]}…"


def format_arguments(call: ToolCall) -> str:
    """Format the arguments of a call as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(call.arguments), indent=2).decode()


def _render_image(block: Image) -> str:
    if block.mime_type in IMAGE_TYPES and block.data and _BASE64.fullmatch(block.data):
        return f'<img alt="Image" src="data:{block.mime_type};base64,{block.data}">'
    return f"<p><i>Image{': ' + escape(block.url) if block.url else ''}</i></p>"


def _render_time(iso: str) -> str:
    return f'<time datetime="{escape(iso)}">{escape(iso[:16].replace("T", " "))}</time>'
