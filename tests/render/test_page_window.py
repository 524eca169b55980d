"""Pages that are turned backwards say together what the whole log says."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import everlog
from everlog.log.fold import fold
from everlog.model import Compaction, Damaged, Entry, Event, Message, Unknown
from everlog.render.marker_index import MarkerIndex, ReadSpan
from everlog.render.page_window import PageWindow, window_after, window_before, window_between
from everlog.render.transcript_items import MessageItem, NoteItem, RemovedItem, SummaryItem, build_items
from tests import histories


def spans(entries: Sequence[Entry]) -> tuple[ReadSpan, list[int]]:
    """A way to read a log, and how many of its records were read."""
    read: list[int] = []

    def span(low: int, high: int) -> list[Entry]:
        found = [one for one in entries if one.seq is not None and low <= one.seq < high]
        read.append(len(found))
        return found

    return span, read


def backwards(sketch: MarkerIndex, size: int) -> list[PageWindow]:
    leaves: list[PageWindow] = []
    before = sketch.high + 1
    while before > 1:
        leaf = window_before(sketch, before, size)
        assert leaf.low < leaf.high == before
        leaves.insert(0, leaf)
        before = leaf.low
    return leaves


def said(leaves: Sequence[PageWindow]) -> list[MessageItem]:
    return [part for leaf in leaves for part in leaf.items if isinstance(part, MessageItem)]


def log_of(steps: list[histories.Step]) -> tuple[everlog.Session, list[Entry]]:
    session = everlog.open_store("memory:").create()
    for step in steps:
        histories.append(session, step)
    return session, list(session.entries())


@given(histories.steps, st.integers(1, 7), st.integers(0, 100))
@settings(deadline=None)
def test_pages_joined_are_what_the_fold_of_the_whole_log_shows(
    steps: list[histories.Step], size: int, known: int
) -> None:
    session, entries = log_of(steps)
    head = session.metadata.through.seq
    span, _ = spans(entries)
    sketch = MarkerIndex(head * known // 100, span)  # begun earlier, and gone on since
    window_before(sketch, sketch.high + 1, size)
    sketch.extend(one for one in entries if (one.seq or 0) > sketch.high)
    leaves = backwards(sketch, size)

    assert said(leaves) == [one for one in build_items(entries) if isinstance(one, MessageItem)]
    view = fold(entries)
    live = {one.seq for one in view.messages}
    everything = [one.seq for one in entries if isinstance(one, Message)]
    assert {seq for seq in everything if sketch.fate(seq) == "live"} == live
    gone = [one for leaf in leaves for one in leaf.items if isinstance(one, RemovedItem)]
    assert sum(one.rewound + one.hidden for one in gone) == len(everything) - len(live)
    standing = sketch.compactions()
    assert view.compaction is None or view.compaction.seq in {one.seq for one in standing}
    folds = [one for leaf in leaves for one in leaf.items if isinstance(one, SummaryItem)]
    assert sorted(one.record.seq for one in folds) == sorted(one.seq for one in standing)
    assert sketch.low == min(head, 1) or not leaves
    assert sketch.count_messages_from(1) == len(everything)
    prompts = [one.seq for one in view.messages if one.role == "user"]
    assert [one.seq for one in sketch.prompts()] == prompts


@given(histories.steps, st.integers(1, 7), st.integers(0, 100))
@settings(deadline=None)
def test_going_on_from_any_place_shows_what_the_whole_log_has_behind_it(
    steps: list[histories.Step], size: int, where: int
) -> None:
    session, entries = log_of(steps)
    head = session.metadata.through.seq
    span, _ = spans(entries)
    sketch = MarkerIndex(head, span)
    begun = after = head * where // 100
    shown: list[MessageItem] = []
    while after < head:
        leaf = window_after(sketch, after, size)
        assert leaf.low == after + 1 <= leaf.high
        shown += said([leaf])
        after = leaf.high - 1
    whole = [one for one in build_items(entries) if isinstance(one, MessageItem)]
    assert shown == [one for one in whole if one.message.seq > begun]


def test_the_newest_page_of_a_long_session_is_all_that_is_read() -> None:
    session = everlog.open_store("memory:").create()
    session.append_many(
        one for number in range(5_000) for one in (everlog.user(f"ask {number}"), everlog.assistant(f"say {number}"))
    )
    span, read = spans(list(session.entries()))
    sketch = MarkerIndex(10_000, span)
    leaf = window_before(sketch, 10_001)
    assert len(leaf.items) == 60
    assert sum(read) <= 130
    older = window_before(sketch, leaf.low)
    assert older.high == leaf.low and sum(read) <= 260


def test_a_page_ends_where_a_summary_stands_for_what_came_before() -> None:
    session = everlog.open_store("memory:").create()
    session.append_many(everlog.user(f"ask {number}") for number in range(50))
    session.append(Compaction(first_kept_seq=41, summary="All of it."))
    session.append(everlog.user("and now"))
    span, read = spans(list(session.entries()))
    sketch = MarkerIndex(52, span)
    leaf = window_before(sketch, 53)
    assert (leaf.low, leaf.starts_with_summary, len(said([leaf]))) == (41, True, 11)
    assert isinstance(leaf.items[0], SummaryItem) and not leaf.items[0].is_expanded
    assert [one.kind for one in leaf.items if isinstance(one, NoteItem)] == ["compacted"]
    assert sum(read) < 40
    assert 50 + 1 - sketch.count_messages_from(41) == 40
    past = window_before(sketch, 41)
    assert (past.low, past.starts_with_summary, past.is_first, len(past.items)) == (1, False, True, 40)
    across = window_between(sketch, 38, 44)
    assert [type(one).__name__ for one in across.items] == ["MessageItem"] * 3 + ["SummaryItem"] + ["MessageItem"] * 3


def test_what_happened_between_messages_stands_in_its_place() -> None:
    entries: list[Entry] = [
        replace(everlog.user("go"), seq=1),
        Event(kind="turn_end", data={"stop": "cancelled"}, seq=2),
        Event(kind="turn_end", data={"stop": "error", "error": "ProviderDeniedError: no key"}, seq=3),
        Event(kind="turn_end", data={"stop": "end"}, seq=4),
        Event(kind="turn_interrupted", data={}, seq=5),
        Damaged(file="session.jsonl", start=10, end=20, problem="crc", seq=6),
        Unknown(record_type="hologram", schema_version=9, seq=7),
        Unknown(record_type="hologram", seq=8),
    ]
    span, _ = spans(entries)
    leaf = window_before(MarkerIndex(8, span), 9)
    kinds = [one.kind if isinstance(one, NoteItem) else type(one).__name__ for one in leaf.items]
    assert kinds == ["MessageItem", "cancelled", "failed", "interrupted", "Damaged", "newer"]
