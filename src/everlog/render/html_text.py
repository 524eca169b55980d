"""Texts as HTML, safely: as they are, as Markdown, or as code with its syntax highlighted.

Nothing in a text becomes a tag: raw HTML is off and pictures from elsewhere are left out, so that
opening a page tells nobody. A link leads to the web or to a mailbox, or it is no link. Terminal
colours are taken out, and other control characters, also those that turn the direction of what
follows, are shown as signs: before Markdown is parsed and after it, for `&#x202e;` is one too.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

COLOURED = 50_000  # characters of code; more of it is shown without colours
MARKDOWN = 200_000  # characters of a text; a longer one is shown as it is
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
# Colours, cursor movements, titles of windows: what a program says to its terminal.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\))")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def readable(text: str) -> str:
    """A text without what only a terminal understands."""
    text = _TERMINAL.sub("", text.replace("\r\n", "\n"))
    return _CONTROL.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def plain(text: str, kind: str = "text") -> str:
    """A text as it is."""
    return f'<pre class="{kind}" dir="auto">{escape(readable(text))}</pre>'


def rendered(text: str) -> str:
    """Markdown as HTML."""
    if len(text) > MARKDOWN:
        return plain(text)
    made = _CONTROL.sub(_picture, _parser().render(readable(text)))
    return f'<div class="prose" dir="auto">{made}</div>'


def coloured(code: str, language: str) -> str:
    """Code with its syntax highlighted, if the language is known."""
    from pygments import highlight  # noqa: PLC0415 - only for pages
    from pygments.lexers import get_lexer_by_name  # noqa: PLC0415
    from pygments.util import ClassNotFound  # noqa: PLC0415

    if len(code) > COLOURED:
        return plain(code, "code")
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return plain(code, "code")
    made: str = highlight(readable(code), lexer, _formatter())
    return made


@cache
def _formatter() -> Any:
    """Made once: that takes longer than most blocks of code do."""
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415 - only for pages

    return HtmlFormatter(cssclass="code", nobackground=True)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - only for pages

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = lambda url: bool(_LINK.match(url))  # type: ignore[method-assign]

    def fence(_: Any, tokens: Any, index: int, *_more: Any) -> str:
        language = tokens[index].info.strip().split(" ")[0] if tokens[index].info else ""
        code = tokens[index].content
        return coloured(code, language) if language else plain(code, "code")

    def link(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        tokens[index].attrSet("rel", "noopener noreferrer nofollow")
        made: str = renderer.renderToken(tokens, index, options, env)
        return made

    def heading(_: Any, tokens: Any, index: int, *_more: Any) -> str:
        # Of one rank, whatever the text has: those of the page around it stay in order.
        return f'<h3 class="{tokens[index].tag}">'

    def cell(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        style = tokens[index].attrs.pop("style", "")  # no page of ours allows any
        if style:
            tokens[index].attrSet("class", str(style).rpartition(":")[2])
        made: str = renderer.renderToken(tokens, index, options, env)
        return made

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
