"""The items of a transcript, and what every renderer makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import everlog
from everlog.cli.message_lines import item_lines
from everlog.model import Compaction, Damaged, Entry, Event, Metadata, Rewind, Tombstone, ToolCall, Unknown
from everlog.render.html_document import build_html_document
from everlog.render.markdown_document import build_markdown_document
from everlog.render.marker_index import MarkerIndex
from everlog.render.page_window import window_before
from everlog.render.transcript_items import (
    MessageItem,
    NoteItem,
    RemovedItem,
    SummaryItem,
    ToolExchange,
    build_items,
    describe_arguments,
)


def numbered(*records: Any) -> list[Entry]:
    return [replace(record, seq=seq) for seq, record in enumerate(records, 1)]


def kinds(entries: list[Entry], *, everything: bool = False) -> list[str]:
    return [type(item).__name__ for item in build_items(entries, everything=everything)]


EVENTFUL = numbered(
    everlog.user("go"),
    everlog.assistant([ToolCall("c", "bash", {"command": "ls"})]),
    everlog.tool_result("c", "files"),
    Event(kind="turn_end", data={"stop": "error", "error": "no key"}),
    everlog.user("a mistake"),
    Tombstone(deletes=(5,)),
    Damaged(file="session.jsonl", start=10, end=20, problem="crc"),
    Unknown(record_type="hologram", schema_version=9),
    everlog.assistant("done"),
)


def test_the_items_of_a_log_are_in_its_order() -> None:
    expected = [MessageItem, MessageItem, NoteItem, RemovedItem, Damaged, NoteItem, MessageItem]
    assert kinds(EVENTFUL) == [kind.__name__ for kind in expected]
    exchange = build_items(EVENTFUL)[1]
    assert isinstance(exchange, MessageItem)
    (block,) = exchange.blocks
    assert isinstance(block, ToolExchange) and block.state == "done" and block.result is not None


def test_everything_shows_removed_messages_one_by_one_with_their_fate() -> None:
    entries = numbered(everlog.user("1"), everlog.user("2"), Tombstone(deletes=(1,)), Rewind(to_seq=1))
    (removed,) = build_items(entries)
    assert removed == RemovedItem(first_seq=1, last_seq=2, rewound=1, hidden=1)
    items = build_items(entries, everything=True)
    assert [item.fate for item in items if isinstance(item, MessageItem)] == ["hidden", "rewound"]


def test_every_renderer_tells_of_failed_turns_and_damage_where_they_are() -> None:
    metadata = Metadata(id="x")
    html = build_html_document(metadata, EVENTFUL)
    markdown = build_markdown_document(metadata, EVENTFUL)
    lines = "\n".join(text for item in build_items(EVENTFUL) for _, text in item_lines(item))
    for text in (html, markdown, lines):
        places = [
            text.index(part) for part in ("The turn failed: no key", "damaged: session.jsonl", "version 9", "done")
        ]
        assert places[:3] == sorted(places[:3])
        assert "a mistake" not in text
        assert text.rindex("done") > places[2]


def test_a_summary_that_kept_nothing_stands_at_the_end() -> None:
    entries = numbered(everlog.user("1"), Compaction(first_kept_seq=3, summary="all of it"))
    window = window_before(MarkerIndex(2, lambda low, high: entries[low - 1 : high - 1]), 3)
    for items in (build_items(entries), window.items):
        last = items[-1]
        assert isinstance(last, SummaryItem) and last.is_current and last.is_expanded


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ""),
        ({"timeout": 9, "command": "make test\nmake bench"}, "make test …"),
        ({"zone": "Europe/Berlin"}, "Europe/Berlin"),
        ({"seconds": 100}, '{"seconds":100}'),
        ({"old": "a", "new": "b"}, '{"old":"a","new":"b"}'),
        ({"agent": "reviewer", "task": "Read the diff"}, "reviewer: Read the diff"),
        ({"path": "x" * 100}, "x" * 59 + "…"),
    ],
)
def test_a_call_is_described_in_one_line(arguments: dict[str, Any], expected: str) -> None:
    assert describe_arguments(arguments) == expected


def test_a_call_without_a_result_is_open() -> None:
    message = replace(everlog.assistant([ToolCall("c", "bash", {})]), seq=1)
    (item,) = build_items([message])
    assert isinstance(item, MessageItem)
    (block,) = item.blocks
    assert isinstance(block, ToolExchange) and block.state == "open" and block.elapsed_ms is None
