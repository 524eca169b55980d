"""Safe HTML from untrusted text: plain, Markdown, or code with syntax highlighting.

No text becomes a tag: raw HTML is disabled and remote images are omitted, so opening a page makes
no request. Links are http, https or mailto, or remain text. Terminal sequences are removed. Other
control characters, including those that change the text direction, are replaced with symbols:
before Markdown is parsed and again after it, since `&#x202e;` is one too.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_HIGHLIGHT = 50_000  # characters of code; longer code is not highlighted
MAX_MARKDOWN = 200_000  # characters; a longer text is shown as plain text
_LINK_SCHEME = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
# Escape sequences of terminals: colours, cursor movements, window titles.
_TERMINAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\))")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def make_readable(text: str) -> str:
    """Remove terminal sequences from a text and replace control characters with symbols."""
    text = _TERMINAL_SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return _CONTROL.sub(_control_symbol, text)


def _control_symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def render_plain(text: str, kind: str = "text") -> str:
    """Render a text unchanged, in a `pre` element."""
    return f'<pre class="{kind}" dir="auto">{escape(make_readable(text))}</pre>'


def render_markdown(text: str) -> str:
    """Render Markdown as HTML."""
    if len(text) > MAX_MARKDOWN:
        return render_plain(text)
    html = _CONTROL.sub(_control_symbol, _parser().render(make_readable(text)))
    return f'<div class="prose" dir="auto">{html}</div>'


def highlight_code(code: str, language: str) -> str:
    """Render code with its syntax highlighted, if the language is known."""
    from pygments import highlight  # noqa: PLC0415 - only for pages
    from pygments.lexers import get_lexer_by_name  # noqa: PLC0415
    from pygments.util import ClassNotFound  # noqa: PLC0415

    if len(code) > MAX_HIGHLIGHT:
        return render_plain(code, "code")
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return render_plain(code, "code")
    html: str = highlight(make_readable(code), lexer, _formatter())
    return html


@cache
def _formatter() -> Any:
    """Return the cached formatter: creating it takes longer than most blocks of code."""
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415 - only for pages

    return HtmlFormatter(cssclass="code", nobackground=True)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - only for pages

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = lambda url: bool(_LINK_SCHEME.match(url))  # type: ignore[method-assign]

    def fence(_: Any, tokens: Any, index: int, *_more: Any) -> str:
        language = tokens[index].info.strip().split(" ")[0] if tokens[index].info else ""
        code = tokens[index].content
        return highlight_code(code, language) if language else render_plain(code, "code")

    def link(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        tokens[index].attrSet("rel", "noopener noreferrer nofollow")
        html: str = renderer.renderToken(tokens, index, options, env)
        return html

    def heading(_: Any, tokens: Any, index: int, *_more: Any) -> str:
        # One level for all, so that the outline of the surrounding page stays in order.
        return f'<h3 class="{tokens[index].tag}">'

    def cell(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        style = tokens[index].attrs.pop("style", "")  # the pages forbid inline styles
        if style:
            tokens[index].attrSet("class", str(style).rpartition(":")[2])
        html: str = renderer.renderToken(tokens, index, options, env)
        return html

    parser.add_render_rule("th_open", cell)
    parser.add_render_rule("td_open", cell)
    scroll = '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>\n'
    parser.add_render_rule("table_open", lambda *_: scroll)
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("fence", fence)
    parser.add_render_rule("heading_open", heading)
    parser.add_render_rule("heading_close", lambda *_: "</h3>\n")
    parser.add_render_rule("link_open", link)
    return parser
