"""What markers mean, asked from the front, from the back and from the middle of a log."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.index.search.passages import collect_changes
from everlog.log.fold import fold
from everlog.log.markers import Markers, read_since_summary
from everlog.model import MARKERS, AnyRecord, Compaction, Message, Rewind, Tombstone, user
from tests.examples import examples
from tests.log.test_fold import make_log, steps


def answers(markers: Markers, log: list[AnyRecord]) -> list[object]:
    fates = [markers.fate(record.seq) for record in log if isinstance(record, Message)]
    standing = markers.compactions()
    stale = [markers.stale_seqs(record) for record in standing]
    summaries = [markers.summary(accept_stale=accept_stale) for accept_stale in (True, False)]
    return [fates, standing, stale, summaries, markers.hidden_seqs(), markers.restored_seqs()]


@given(steps, st.integers(0, 60))
@settings(max_examples=examples(1000), deadline=None)
def test_markers_say_the_same_in_whatever_order_they_are_read(choices: list[tuple[str, int, int]], cut: int) -> None:
    log = make_log(choices)
    expected = answers(Markers.of(log), log)
    backward = Markers()
    grown = Markers()
    middle = min(cut, len(log))
    for record in reversed(log):
        if isinstance(record, MARKERS):
            backward.prepend(record)
    for record in reversed(log[:middle]):
        if isinstance(record, MARKERS):
            grown.prepend(record)
    for record in log[middle:]:
        if isinstance(record, MARKERS):
            grown.append(record)
    assert answers(backward, log) == expected
    assert answers(grown, log) == expected


@given(steps, st.integers(0, 60))
@settings(max_examples=examples(1000), deadline=None)
def test_search_finds_the_live_messages_however_they_were_indexed(
    choices: list[tuple[str, int, int]], cut: int
) -> None:
    log = make_log(choices)
    found: set[int] = set()
    middle = min(cut, len(log))
    for batch in (log[:middle], log[middle:]):
        changes = collect_changes(batch)
        for first, last in changes.removed_ranges:
            found -= {seq for seq in found if first <= seq <= last and isinstance(log[seq - 1], Message)}
        found -= changes.removed | changes.restored
        if changes.restored:
            first = max(min(changes.restored), 1)  # 0 is the birth record, which this log lacks
            found |= collect_changes(log[first - 1 :]).new.keys() & changes.restored
        found |= changes.new.keys()
    messages = {record.seq for record in log if isinstance(record, Message)}
    assert found & messages == {message.seq for message in fold(log).messages}


def test_a_marker_changes_only_records_before_it() -> None:
    markers = Markers.of([Tombstone(deletes=(1, 5), seq=2), Rewind(to_seq=9, seq=3)])
    assert [markers.fate(seq) for seq in (1, 4, 5)] == ["hidden", "live", "live"]


def test_a_restored_message_stays_rewound() -> None:
    markers = Markers.of([Tombstone(deletes=(2,), seq=3), Rewind(to_seq=1, seq=4), Tombstone(restores=(2,), seq=5)])
    assert markers.fate(2) == "rewound"
    assert markers.restored_seqs() == set()


def test_reading_back_stops_at_the_first_message_that_the_summary_kept() -> None:
    log: list[AnyRecord] = [*(user("x") for _ in range(4)), Compaction(first_kept_seq=3, summary="s"), user("y")]
    numbered = [replace(record, seq=seq) for seq, record in enumerate(log, 1)]
    taken = [entry.seq for entry in read_since_summary(reversed(numbered), Markers())]
    assert taken == [6, 5, 4, 3]
