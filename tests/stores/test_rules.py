"""The rules of every store: what a filter, a page, a retry, a lease and a fork mean, without a store."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from everlog.errors import ConflictError
from everlog.ids import timestamp, ulid_at
from everlog.index.listing_rows import SessionIndex
from everlog.log.line_codec import as_stored, build_line
from everlog.model import AnyRecord, Metadata, Through, pair, user
from everlog.ports import Filter, Lease, Order, SessionRow
from everlog.ports.listing import cursor_of, make_page, matcher
from everlog.stores import rules
from everlog.stores.rules import AppendCall, PreparedRecord

DAY = 86_400_000


def a_row(number: int, **fields: Any) -> SessionRow:
    """A session of day `number`, last active some days later."""
    created = timestamp(number * DAY / 1000)
    active = timestamp((number + number % 3) * DAY / 1000)
    data = Metadata(
        id=ulid_at(number * DAY, bytes([number]) * 10), created_at=created, last_message_at=active, **fields
    )
    return SessionRow(data, 10 * number, 1)


@pytest.fixture
def rows() -> list[SessionRow]:
    kinds = product(
        ("main", "other", "Zoë"), ("user", "Ann"), ("interactive", "cron"), (None, "Straße", "a % b"), ((), ("q",))
    )
    return [
        a_row(number, agent=agent, sender=sender, source=source, title=title, waiting=waiting)
        for number, (agent, sender, source, title, waiting) in enumerate(kinds, 1)
    ]


def in_sql(rows: list[SessionRow]) -> SessionIndex:
    index = SessionIndex(None, lambda _: None)
    index.put(rows, new=True)
    return index


@pytest.mark.parametrize("order", ["active", "created"])
def test_a_filter_means_the_same_to_a_predicate_and_to_sql(rows: list[SessionRow], order: Order) -> None:
    index = in_sql(rows)
    times = (None, timestamp(20 * DAY / 1000))
    for agent, sender, title, unfinished, since in product(
        (None, "main", "nobody"), (None, "Ann"), (None, "STRASSE", "% ", ""), (None, True, False), times
    ):
        criteria = Filter(agent=agent, sender=sender, source="cron", title=title, unfinished=unfinished, since=since)
        expected = make_page(filter(matcher(criteria), rows), 100, None, order)
        page = index.page(criteria, 100, None, order)
        assert [row.id for row in page] == [row.id for row in expected], criteria
        assert page.total == expected.total


@pytest.mark.parametrize("order", ["active", "created"])
@pytest.mark.parametrize("limit", [1, 7, 72])
def test_pages_have_every_row_once_in_order(rows: list[SessionRow], order: Order, limit: int) -> None:
    page = make_page(rows, limit, None, order)
    seen = [*page]
    while page.next is not None:
        assert page.next == cursor_of(page[-1], order)
        page = make_page(rows, limit, page.next, order)
        seen += page
    assert [row.id for row in seen] == [row.id for row in make_page(rows, 1000, None, order)]
    assert page.total == len(seen) == len(rows)


def a_call(*ids: str, expected_seq: int | None = None, no_marker_after: int | None = None) -> AppendCall:
    records = [user(f"text of {name}", id=name) for name in ids]
    return AppendCall(rules.prepare_records(records, lambda: "now", lambda: "new"), expected_seq, no_marker_after)


def stored_at(item: PreparedRecord, seq: int) -> AnyRecord:
    line = build_line(item.body, item.record.record_type, seq)
    return as_stored(item.record, seq, line, plain=item.plain)


def test_a_batch_that_is_stored_in_part_is_completed_in_its_order() -> None:
    call = a_call("a", "b", "c")
    stored = {name: stored_at(item, seq) for seq, (name, item) in enumerate(zip("abc", call.prepared, strict=True), 4)}
    retried = rules.find_retried("s", call, 9, {"b": 5}.get, lambda seq: stored["b"])
    assert retried == {1: stored["b"]}
    new = rules.without_retried(call, retried)
    assert [item.record.id for item in new] == ["a", "c"]
    assert rules.in_order(retried, [stored["a"], stored["c"]]) == [stored["a"], stored["b"], stored["c"]]


def test_an_id_is_free_again_after_so_many_records_and_taken_before() -> None:
    call, head = a_call("a"), 5000
    (another,) = rules.prepare_records([user("another", id="a")], lambda: "now", lambda: "new")

    def other(seq: int) -> AnyRecord:
        return stored_at(another, seq)

    assert rules.find_retried("s", call, head, {"a": head - rules.RETRY_WINDOW}.get, other) == {}
    with pytest.raises(ConflictError, match="another record"):
        rules.find_retried("s", call, head, {"a": head - rules.RETRY_WINDOW + 1}.get, other)


def test_conditions_hold_for_the_head_and_for_the_last_marker() -> None:
    rules.check_conditions("s", a_call("a", expected_seq=4, no_marker_after=3), 5, 1, lambda after: 3)
    with pytest.raises(ConflictError, match="is at seq 5"):
        rules.check_conditions("s", a_call("a", expected_seq=4), 5, 0, lambda after: 0)
    with pytest.raises(ConflictError, match="changed by record 4"):
        rules.check_conditions("s", a_call("a", no_marker_after=3), 5, 0, lambda after: 4)


class Held(Lease):
    """A lease that is held until it is released."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._held = True

    @property
    def held(self) -> bool:
        return self._held

    def release(self) -> None:
        self._held = False


class Other(Held):
    """The lease of another store."""


def test_a_lease_counts_for_its_store_and_session_while_it_is_held() -> None:
    with Held("s") as lease:
        rules.check_lease("s", lease, Held)
        for session, kind in (("another", Held), ("s", Other)):
            with pytest.raises(ConflictError, match="is not held"):
                rules.check_lease(session, lease, kind)
    with pytest.raises(ConflictError, match="is not held"):
        rules.check_lease("s", lease, Held)


def test_a_fork_is_one_more_chat_of_its_pair_and_leaves_the_names() -> None:
    source = Metadata(id="S", agent="a", sender="b", key="k", aliases=("x",), title="T", through=Through(1, 9, 7))
    chats = {pair("a", "b"): 4}
    changes = rules.fork_changes(source, 7, chats.__getitem__, has_birth=True)
    assert changes["forkedFrom"] == {"id": "S", "seq": 7} and changes["chat"] == 5
    assert [name for name, value in changes.items() if value is None] == [
        "key", "aliases", "generations", "current", "promotedFrom", "promotedTo",
    ]  # fmt: skip
    assert "name" not in changes
    assert rules.fork_changes(source, 7, chats.__getitem__, has_birth=False)["name"] == "T"


def test_a_new_session_is_the_next_chat_and_takes_its_names() -> None:
    blank = rules.blank_metadata(ulid_at(0, bytes(10)))
    fields = rules.new_session_fields({"key": "k", "aliases": ["x"]}, blank, {"k": ("S", 3)}.get, lambda thread: 8)
    assert fields["generations"] == {"k": 4, "x": 1} and fields["chat"] == 9 and "current" not in fields
    assert rules.new_session_fields({}, blank, lambda name: None, lambda thread: 0) == {"chat": 1, "current": 1}
