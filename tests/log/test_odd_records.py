"""Whatever a record holds: one that can be stored can be folded, listed and counted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.log.fold import MetadataFold
from everlog.log.line_codec import encode_and_read_back
from everlog.log.usage_fold import day_of, session_usage
from everlog.model import (
    REREAD,
    SETTABLE,
    TURN_END,
    TURN_INTERRUPTED,
    USAGE,
    AnyRecord,
    Event,
    Message,
    Meta,
    Metadata,
    ToolCall,
    Usage,
)
from everlog.ports import Query
from everlog.stores.file.file_store import FileStore
from tests.examples import examples

ID = "01KGE3H97TGVVEZJ8D2YTM5SQ1"
numbers: st.SearchStrategy[Any] = st.sampled_from(
    [
        0,
        1,
        -1,
        True,
        2**50,
        2**63,
        2**64,
        -(2**70),
        10**308,
        10**400,
        -(10**400),
        0.5,
        -0.5,
        1e300,
        1.7e308,
        -1.7e308,
        float("inf"),
        float("-inf"),
        float("nan"),
    ]
)
odd: st.SearchStrategy[Any] = numbers | st.sampled_from(
    [
        None,
        "inf",
        "1e999",
        "NaN",
        "-3",
        "",
        "x" * 3000,
        "\0",
        "\ud800",
        [],
        {},
        [[10**400]],
        {"messages": float("inf")},
        {"messages": 10**400},
        {"id": [], "seq": {}},
        {"a": 10**400},
    ]
)
stamps = st.sampled_from(
    [
        "",
        "-",
        "Z",
        "soon",
        "2026-11-16T08:00:00.000Z",
        "2026-11-16T08:00:00+05:00",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "9999-12-31T23:59:59.999999Z",
    ]
)
wholes = st.sampled_from([0, 1, -1, 2**50, 2**63, 2**64, 10**400, -(10**400)])
prices = st.sampled_from([0.0, -1.0, 0.5, 1.7e308, float("inf"), float("nan")])
told = ["inputTokens", "outputTokens", "totalTokens", "cacheReadTokens", "cacheWriteTokens"]
usages = st.builds(
    Usage,
    input_tokens=wholes,
    output_tokens=wholes,
    total_tokens=wholes,
    cache_read_tokens=wholes,
    cache_write_tokens=wholes,
    cost=prices,
)
ends = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["cost", "durationMs", "toolCalls", "model", "id"], odd),
        "usage": odd | st.dictionaries(st.sampled_from(told), odd),
    },
)
facts = st.dictionaries(st.sampled_from([*sorted(SETTABLE), "spent", "metrics", "mine"]), odd)
calls = st.sampled_from([(), (ToolCall(id="1", name="n", arguments={"a": 10**400}),)])
records: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(
        Event,
        kind=st.sampled_from([TURN_END, TURN_END, TURN_INTERRUPTED, REREAD, USAGE, "queued", "withdrawn"]),
        data=ends,
        timestamp=stamps,
    ),
    st.builds(Meta, set=facts, timestamp=stamps),
    st.builds(
        Message,
        role=st.sampled_from(["user", "assistant", "toolResult"]),
        content=calls,
        timestamp=stamps,
        model=st.sampled_from([None, "", "m", "m" * 5000]),
        run_id=st.sampled_from([None, "r"]),
        usage=st.none() | usages,
    ),
)
logs = st.lists(records, min_size=1, max_size=8)
COSTLY = Event(kind=TURN_END, data={"cost": 10**400})
LONG = Event(kind=TURN_END, data={"durationMs": 1.7e308, "usage": {"inputTokens": 10**400}})
LATE = Event(kind=TURN_END, timestamp="9999-12-31T23:59:59-23:59")


def _kept(log: list[AnyRecord]) -> list[AnyRecord]:
    """Those that can be stored, as they are read."""
    kept: list[AnyRecord] = []
    for record in log:
        try:
            given, _, read = encode_and_read_back(record)
        except FormatError:
            continue
        kept.append(replace(read or given, seq=len(kept) + 1))
    return kept


@settings(max_examples=examples(300), deadline=None)
@example([COSTLY])
@example([LONG, LONG])
@example([LATE])
@given(logs)
def test_folding_a_record_that_can_be_stored_never_fails(log: list[AnyRecord]) -> None:
    tally = MetadataFold.empty(ID)
    for record in _kept(log):
        tally.add(record)
        metadata = tally.metadata(1, 0)
        again = msgspec.json.decode(msgspec.json.encode(metadata), type=Metadata)
        assert again == metadata, "so a process that has only the row goes on from the same"
        tally = MetadataFold(again)
        session_usage(again)


@settings(max_examples=examples(25), deadline=None)
@example([COSTLY])
@example([LONG, LONG])
@example([LATE])
@given(logs)
def test_a_store_lists_counts_and_finds_whatever_it_has_stored(log: list[AnyRecord]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder))
        session = store.create().id
        for record in _kept(log):
            store.append(session, [replace(record, seq=0, line=b"")])
        known = store.metadata(session)
        store.close()
        again = FileStore(Path(folder))
        assert again.metadata(session) == known
        assert [row.id for row in again.list()] == [session]
        again.usage()
        again.search(Query(text="x"))
        again.close()


def test_a_time_behind_the_last_year_is_of_no_day() -> None:
    assert day_of("9999-12-31T23:59:59-23:59", "2026-02-02T00:00:00Z") == "2026-02-02"
