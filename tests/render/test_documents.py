"""Sessions as Markdown and HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import everlog
from everlog.interop.exporter import export_document, export_json, export_native
from everlog.render.markdown_document import fence_code

EVIL = "<script>alert(1)</script> <img src=x onerror=alert(1)> \"' & \x1b[31m"
SECRET = "ghp_" + "a1B2" * 9


@pytest.fixture
def session(tmp_path: Path) -> everlog.Session:
    with everlog.open_store(tmp_path, create=True) as store:
        made = store.create(title=f"Fix it {EVIL}")
        made.append(everlog.user(f"The login test fails. {EVIL} {SECRET}"))
        made.append(
            everlog.assistant(
                [
                    everlog.Thinking(f"hm {EVIL}"),
                    everlog.Text(
                        f"See **this**:\n\n```python\nx = 1  # {EVIL}\n```\n{EVIL}\n![p](http://evil.example/p.png)"
                    ),
                    everlog.ToolCall("c1", f"read{EVIL}", {"path": f"a {EVIL}"}),
                    everlog.ToolCall("c2", "bash", {"command": "pytest"}),
                    everlog.ToolCall("c3", "never", {}),
                    everlog.OtherBlock({"type": EVIL}),
                ]
            )
        )
        made.append(everlog.tool_result("c2", "1 failed", is_error=True))
        made.append(everlog.tool_result("c1", [everlog.Text(EVIL), everlog.Image(mime_type="image/png", data="aGk=")]))
        made.append(everlog.Compaction(first_kept_seq=5, summary=f"## Goal\n{EVIL}"))
        made.append(everlog.user("gone"))
        made.tombstone(6)
        made.append(everlog.assistant([everlog.Image(mime_type="image/svg+xml", data="aGk=")]))
        return made


class Seen(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def _page(session: everlog.Session, kind: str, **how: bool) -> tuple[str, int]:
    written, covered = export_document(session, kind, **how)
    (data,) = written.files.values()
    return data.decode(), covered


def test_nothing_that_was_said_becomes_markup(session: everlog.Session) -> None:
    page, _ = _page(session, "html")
    seen = Seen(page)
    assert "script" not in seen.tags and not any(name.startswith("on") for name, _ in seen.attributes)
    assert seen.text.count("<script>alert(1)</script>") >= 6
    sources = [value or "" for name, value in seen.attributes if name in ("src", "href")]
    assert all(one.startswith(("data:image/png;", "#")) or one == "http://evil.example/p.png" for one in sources)
    assert "img" in seen.tags and "image/svg" not in page


def test_the_page_needs_nothing_from_elsewhere(session: everlog.Session) -> None:
    page, _ = _page(session, "html")
    assert not re.search(r"""(?:src|@import|url\()\s*[=(]?\s*["']?https?:""", page)
    assert "<link" not in page and "default-src 'none'" in page
    assert "viewport" in page and "prefers-color-scheme" in page


def test_calls_are_folded_with_their_results(session: everlog.Session) -> None:
    page, _ = _page(session, "html")
    folds = re.findall(r'<details class="call (\w+)">.*?</details>', page, re.DOTALL)
    assert folds == ["done", "failed", "failed"]
    assert page.index("bash") < page.index("1 failed") < page.index("never")
    assert "gone" not in Seen(page).text


def test_what_was_summarised_is_shown_with_its_summary_in_its_place(session: everlog.Session) -> None:
    for kind in ("html", "md"):
        page, _ = _page(session, kind)
        assert page.index("The login test fails") < page.index("all messages before") < page.index("Goal")


def test_secrets_are_covered_up_unless_asked_otherwise(session: everlog.Session) -> None:
    for kind in ("html", "md"):
        page, covered = _page(session, kind)
        assert SECRET not in page and covered == 1
        page, covered = _page(session, kind, redacted=False)
        assert SECRET in page and covered == 0


def test_markdown_is_readable_as_it_is(session: everlog.Session) -> None:
    page, _ = _page(session, "md")
    assert page.startswith("# Fix it ")
    assert "\x1b" not in page.split("\n")[0]
    assert "> hm" in page and "**bash** (failed)" in page
    assert page.count("```") % 2 == 0


def test_a_fence_is_longer_than_any_in_the_code() -> None:
    assert fence_code("a\n````\nb") == ["`````", "a\n````\nb", "`````"]


def test_native_and_json_hold_everything(session: everlog.Session) -> None:
    (lines,) = export_native(session).files.values()
    assert lines.count(b"\n") == len(session.records()) + 1, "with the birth record"
    (data,) = export_json(session).files.values()
    assert b'"messages"' in data and b"OtherBlock" not in data and b"gone" not in data
