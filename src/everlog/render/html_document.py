"""A session as one self-contained HTML file: no script, no font, no network.

All content is escaped. Markdown is rendered with raw HTML disabled and remote images omitted, so
opening the file makes no request. Tool calls and thinking are collapsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files

from everlog.model import Damaged, Entry, Metadata
from everlog.render.html_blocks import HtmlBlocks
from everlog.render.humanize import one_line
from everlog.render.transcript_items import (
    MessageItem,
    NoteItem,
    Redact,
    SummaryItem,
    TranscriptItem,
    build_items,
    describe_damage,
    speaker_label,
)

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
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
    blocks = HtmlBlocks(redact)
    body = (_render_item(item, blocks, redact) for item in build_items(entries))
    return head + "\n".join(filter(None, body)) + "\n</main>\n</body>\n</html>\n"


@cache
def stylesheet() -> str:
    """Return the style sheet, including highlighted code in light and dark themes."""
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415 - only for pages

    light = HtmlFormatter(style="default", cssclass="code").get_style_defs(".code")  # type: ignore[no-untyped-call]
    dark = HtmlFormatter(style="github-dark", cssclass="code").get_style_defs(".code")  # type: ignore[no-untyped-call]
    rules = (files("everlog.render") / "style.css").read_text(encoding="utf-8")
    return f"{rules}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _render_item(item: TranscriptItem, blocks: HtmlBlocks, redact: Redact) -> str:
    if isinstance(item, MessageItem):
        message = item.message
        return (
            f'<article class="{escape(message.role)}" id="m{message.seq}">\n'
            f'<p class="who"><b>{speaker_label(message)}</b> '
            f'<a href="#m{message.seq}">{_render_time(message.timestamp)}</a></p>\n{blocks.render(item)}\n</article>'
        )
    if isinstance(item, SummaryItem):
        record = item.record
        return (
            f'<section class="summary" id="m{record.seq}">\n<details><summary>Summary for the model of all messages '
            f"before {record.first_kept_seq}</summary>\n"
            f"{blocks.render_text(record.summary, record.seq, is_markdown=True)}\n</details></section>"
        )
    if isinstance(item, Damaged):
        return f'<p class="note">{escape(one_line(describe_damage(item)))}</p>'
    if isinstance(item, NoteItem) and item.kind != "compacted":  # its summary is in the document
        return f'<p class="note">{escape(one_line(redact(item.text)))} {_render_time(item.timestamp)}</p>'
    return ""


def _render_time(iso: str) -> str:
    return f'<time datetime="{escape(iso)}">{escape(iso[:16].replace("T", " "))}</time>'
