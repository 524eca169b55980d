"""A session as one HTML file that needs nothing else: no script, no font, no network.

Everything that was said is escaped; Markdown is rendered with raw HTML off and images from
elsewhere left out, so that opening the page tells nobody. Tool calls and thinking are folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from importlib.resources import files

import msgspec

from everlog.model import (
    Compaction,
    Entry,
    File,
    Image,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
)
from everlog.render.html_text import coloured, plain, rendered
from everlog.render.markdown_document import one_line
from everlog.render.transcript_items import Call, Cover, Said, script

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_WHO = {"user": "You", "assistant": "Agent", "toolResult": "Tool"}
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
<p>{facts}</p>
</header>
<main>
"""


def html(metadata: Metadata, entries: Iterable[Entry], cover: Cover = str) -> str:
    """The page."""
    names = [metadata.agent, metadata.model]
    times = [metadata.created_at, metadata.last_message_at]
    head = _HEAD.format(
        title=escape(one_line(cover(metadata.title))),
        style=style(),
        policy=POLICY,
        facts=" · ".join(
            [
                *(escape(one_line(one)) for one in names if one),
                *(_time(one) for one in times if one),
            ]
        ),
    )
    body = (line for part in script(entries) for line in _part(part, cover))
    return head + "\n".join(body) + "\n</main>\n</body>\n</html>\n"


@cache
def style() -> str:
    """The style sheet, with that of highlighted code for light and dark."""
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415 - only for pages

    light = HtmlFormatter(style="default", cssclass="code").get_style_defs(".code")  # type: ignore[no-untyped-call]
    dark = HtmlFormatter(style="github-dark", cssclass="code").get_style_defs(".code")  # type: ignore[no-untyped-call]
    own = (files("everlog.render") / "style.css").read_text(encoding="utf-8")
    return f"{own}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _part(part: Said | Compaction, cover: Cover) -> Iterator[str]:
    if isinstance(part, Compaction):
        yield f'<section class="summary" id="m{part.seq}">'
        yield "<details><summary>Summarised for the model: everything before message"
        yield f"{part.first_kept_seq}</summary>"
        yield rendered(cover(part.summary))
        yield "</details></section>"
        return
    message = part.message
    kind = escape(message.role)
    yield f'<article class="{kind}" id="m{message.seq}">'
    yield f'<p class="who"><b>{_WHO[message.role]}</b> <a href="#m{message.seq}">'
    yield f"{_time(message.timestamp)}</a></p>"
    for block in part.blocks:
        if isinstance(block, Text):
            yield (
                rendered(cover(block.text))
                if message.role == "assistant"
                else plain(cover(block.text))
            )
        elif isinstance(block, Thinking):
            yield f"<details><summary>Thinking</summary>{plain(cover(block.thinking))}</details>"
        elif isinstance(block, Call):
            yield from _call(block, cover)
        elif isinstance(block, Image):
            yield _picture(block)
        elif isinstance(block, File):
            yield f"<p><i>{escape(one_line(block.name or 'a file'))}</i></p>"
        elif isinstance(block, OtherBlock):
            yield f"<p><i>a block of kind {escape(one_line(block.type))}</i></p>"
    yield "</article>"


def _call(one: Call, cover: Cover) -> Iterator[str]:
    state = "failed" if one.failed else "done"
    told = escape(brief(one.call, cover))
    yield f'<details class="call {state}"><summary><code>{escape(one.call.name)}</code> {told}'
    yield f'<span class="state">{state}</span></summary>'
    yield coloured(cover(arguments(one.call)), "json")
    if one.result is not None:
        yield plain(cover(one.result.text), "result")
        yield from (_picture(block) for block in one.result.content if isinstance(block, Image))
    yield "</details>"


def brief(call: ToolCall, cover: Cover = str) -> str:
    """The first argument, which mostly says what a call is about."""
    first = next((one for one in call.arguments.values() if isinstance(one, str)), "")
    text = one_line(cover(first[:400]))
    return text if len(text) <= 80 else f"{text[:79]}…"


def arguments(call: ToolCall) -> str:
    """What a call was given, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(call.arguments), indent=2).decode()


def _picture(block: Image) -> str:
    if block.mime_type in PICTURES and block.data and _BASE64.fullmatch(block.data):
        return f'<img alt="a picture" src="data:{block.mime_type};base64,{block.data}">'
    return f"<p><i>a picture{': ' + escape(block.url) if block.url else ''}</i></p>"


def _time(iso: str) -> str:
    return f'<time datetime="{escape(iso)}">{escape(iso[:16].replace("T", " "))}</time>'
