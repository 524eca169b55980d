"""The fold forwards and the context backwards mean the same, over random logs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.context.build import build, summary_message
from everlog.log.backward_read import read_live
from everlog.log.fold import View, apply_changes, fold, from_builtins, to_builtins
from everlog.model import AnyRecord, Compaction, Damaged, Event, Message, Metadata, Rewind, Tombstone, assistant, user
from tests.examples import examples

steps = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "tombstone", "restore", "rewind", "compaction", "event"]),
        st.integers(0, 60),
        st.integers(0, 60),
    ),
    max_size=60,
)


def make_log(choices: list[tuple[str, int, int]]) -> list[AnyRecord]:
    made: list[AnyRecord] = []
    for seq, (kind, first, second) in enumerate(choices, 1):
        low, high = first % seq, second % seq
        record: AnyRecord
        if kind == "user":
            record = user(f"u{seq}")
        elif kind == "assistant":
            record = assistant(f"a{seq}")
        elif kind == "tombstone":
            record = Tombstone(deletes=(low, high))
        elif kind == "restore":
            record = Tombstone(restores=(low, high))
        elif kind == "rewind":
            record = Rewind(to_seq=low)
        elif kind == "compaction":
            record = Compaction(first_kept_seq=low + 1, summary=f"s{seq}")
        else:
            record = Event(kind="x")
        made.append(replace(record, seq=seq))
    return made


def _forward_context(view: View) -> list[Message]:
    """What the context must be, from the forward fold alone."""
    if view.compaction is None:
        return list(view.messages)
    first = view.compaction.first_kept_seq
    kept = [message for message in view.messages if message.seq >= first]
    return [summary_message(view.compaction), *kept]


@given(steps)
@settings(max_examples=examples(3000), deadline=None)
def test_reading_backwards_gives_what_folding_forwards_gives(choices: list[tuple[str, int, int]]) -> None:
    log = make_log(choices)
    view = fold(log)
    assert list(build(read_live(reversed(log))).messages) == _forward_context(view)


@given(steps)
@settings(max_examples=examples(500), deadline=None)
def test_nothing_older_than_the_context_is_read(choices: list[tuple[str, int, int]]) -> None:
    log = make_log(choices)
    standing = fold(log).compaction
    seen: list[int] = []

    def backwards() -> Any:
        for record in reversed(log):
            seen.append(record.seq)
            yield record

    build(read_live(backwards()))
    if standing is not None:
        assert min(seen, default=0) >= min(standing.first_kept_seq, standing.seq) - 1


def test_a_tombstone_on_what_a_summary_covers_makes_it_stale() -> None:
    log = make_log([("user", 0, 0), ("user", 0, 0), ("user", 0, 0)])
    log.append(Compaction(first_kept_seq=3, summary="s", seq=4))
    assert build(read_live(reversed(log))).stale == ()
    log.append(Tombstone(deletes=(1, 3), seq=5))
    context = build(read_live(reversed(log)))
    assert context.stale == (1,)
    assert len(context.messages) == 1
    log.append(Tombstone(restores=(1,), seq=6))
    assert build(read_live(reversed(log))).stale == ()


def test_a_damaged_compaction_is_skipped_and_named() -> None:
    log = make_log([("user", 0, 0), ("user", 0, 0)])
    damaged = Damaged(file="session.jsonl", start=1, end=2, seq=3, problem="crc does not match")
    context = build(read_live([replace(user("later"), seq=4), damaged, *reversed(log)]))
    assert [message.text for message in context.messages] == ["u1", "u2", "later"]
    assert [(one.seq, one.why) for one in context.left_out] == [(3, "damaged: crc does not match")]


def test_metadata_keeps_what_it_does_not_know() -> None:
    metadata = Metadata(id="x")
    changed = apply_changes(metadata, {"colour": "red", "name": "N", "aliases": 7})
    assert changed.title == "N"
    assert changed.extra == {"colour": "red"}
    assert changed.aliases == ()
    assert from_builtins(to_builtins(changed)) == changed
    assert apply_changes(changed, {"name": None}).title is None
