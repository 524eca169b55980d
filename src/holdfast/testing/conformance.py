"""What every store must do, as a suite that any test runner can collect.

    class TestMyStore(StoreConformance):
        def open(self, settings):
            return MyStore(settings)

A store passes when all methods whose name begins with `test_` return. Nothing here needs pytest.
Stores that can be closed and opened again override `reopen`, stores whose last bytes can be torn
by a crash override `tear`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from holdfast.errors import (
    Conflict,
    FormatError,
    HoldfastError,
    InvalidId,
    NotFound,
    SessionBusy,
    StoreFull,
)
from holdfast.log import lines
from holdfast.model import (
    AnyRecord,
    Compaction,
    Event,
    Message,
    Meta,
    Rewind,
    Text,
    Tombstone,
    ToolCall,
    Usage,
    assistant,
    tool_result,
    user,
)
from holdfast.ports import Store as Port
from holdfast.session import Session, Store
from holdfast.settings import SessionSettings, Settings

SMALL = Settings(session=SessionSettings(part_bytes=2000, total_bytes=20_000, line_bytes=5000))


def _id(session: Session | None) -> str | None:
    return None if session is None else session.id


class StoreConformance:
    """The contract of the store port, clause by clause."""

    # --- what a store gives

    def open(self, settings: Settings) -> Port:
        """A new, empty store."""
        raise NotImplementedError

    def reopen(self, port: Port) -> Port:
        """The same store as another process would find it."""
        return port

    def tear(self, port: Port, session: str) -> None:
        """Leave half a record at the end of a log, as a crash would; nothing where none can."""

    # --- creation

    def test_a_new_session_is_empty_and_has_the_facts_it_was_given(self) -> None:
        store = self._store()
        session = store.create(
            agent="a", sender="tg:1", model="m", system_prompt_override="be kind"
        )
        metadata = session.metadata
        assert (metadata.agent, metadata.sender, metadata.model) == ("a", "tg:1", "m")
        assert metadata.system_prompt_override == "be kind"
        assert metadata.message_count == 0
        assert metadata.last_message_at == metadata.created_at
        assert session.messages() == []
        assert session.records() == []
        assert session.size == 0

    def test_unknown_metadata_is_refused_and_makes_nothing(self) -> None:
        store = self._store()
        with raises(FormatError):
            store.port.create({"colour": "red"})
        with raises(FormatError):
            store.port.create({"messageCount": 7})
        assert len(store.list()) == 0

    def test_ids_grow_in_the_order_of_creation(self) -> None:
        store = self._store()
        ids = [store.create().id for _ in range(20)]
        assert ids == sorted(set(ids))

    def test_what_cannot_be_an_id_is_refused_and_what_is_not_there_is_not_found(self) -> None:
        store = self._store()
        known = store.create().id
        for bad in ("../x", "x/y", "a" * 26, "x\0y", known + "\n", "", "..", known.lower()):
            with raises(InvalidId):
                store.session(bad)
            with raises(InvalidId):
                store.port.append(bad, [user("x")])
            with raises(InvalidId):
                store.port.delete(bad)
        with raises(NotFound):
            store.session("0" * 26)
        with raises(NotFound):
            store.port.append("0" * 26, [user("x")])

    # --- appending

    def test_records_are_numbered_from_one_without_gaps(self) -> None:
        session = self._store().create()
        seqs = [session.append(user(str(n))).seq for n in range(5)]
        seqs += [one.seq for one in session.append_many([user("a"), assistant("b")])]
        assert seqs == [1, 2, 3, 4, 5, 6, 7]
        assert [record.seq for record in session.records()] == seqs

    def test_what_append_returns_is_what_is_read(self) -> None:
        session = self._store().create()
        given: list[AnyRecord] = [
            user("hello", sender="tg:1", cwd="/src"),
            assistant(
                [
                    {"type": "text", "text": "hi"},
                    {"type": "toolCall", "id": "c", "name": "ls", "arguments": {"path": "."}},
                ],
                model="m",
                usage=Usage(input_tokens=3, output_tokens=4),
                stop_reason="toolUse",
            ),
            tool_result("c", "README", is_error=False),
            Event(kind="note", data={"a": [1, None, {"b": True}]}),
        ]
        stored = session.append_many(given)
        read = session.records()
        assert stored == read
        assert [one.line for one in stored] == [one.line for one in read]
        assert isinstance(read[0], Message)
        assert read[0].id
        assert read[0].timestamp

    def test_a_stale_expect_is_refused_and_writes_nothing(self) -> None:
        session = self._store().create()
        session.append(user("one"), expect=0)
        with raises(Conflict):
            session.append(user("two"), expect=0)
        with raises(Conflict):
            session.append(user("two"), expect=2)
        assert len(session.records()) == 1
        assert session.append(user("two"), expect=1).seq == 2

    def test_an_id_given_again_returns_the_stored_record(self) -> None:
        session = self._store().create()
        first = session.append(user("pay 5", id="order-1"), expect=0)
        again = session.append(user("pay 5", id="order-1"), expect=0)
        assert again == first
        assert len(session.records()) == 1
        with raises(Conflict):
            session.append(user("pay 6", id="order-1"))
        assert len(session.records()) == 1

    def test_a_batch_found_in_part_is_completed(self) -> None:
        session = self._store().create()
        session.append(user("a", id="1"), expect=0)
        batch = [user("a", id="1"), user("b", id="2"), user("c", id="3")]
        assert [one.seq for one in session.append_many(batch, expect=0)] == [1, 2, 3]
        assert [one.seq for one in session.append_many(batch, expect=0)] == [1, 2, 3]
        assert [message.text for message in session.messages()] == ["a", "b", "c"]

    def test_an_id_older_than_the_last_1024_records_is_new_again(self) -> None:
        store = self._store()
        session = store.create()
        session.append(user("x", id="old"))
        session.append_many([user(str(n)) for n in range(1023)])
        assert session.append(user("x", id="old")).seq == 1
        session.append(user("one more"))
        assert session.append(user("x", id="old")).seq == 1026

    def test_ids_are_known_after_reopening(self) -> None:
        store = self._store()
        session = store.create()
        session.append(user("a", id="1"))
        session = self._again(store, session)
        assert session.append(user("a", id="1")).seq == 1
        assert len(session.records()) == 1

    def test_guard_refuses_only_when_a_marker_came_after_it(self) -> None:
        store = self._store()
        session = store.create()
        session.append_many([user("a"), assistant("b"), user("c")])
        session.append(Event(kind="x"), guard=0)
        session.tombstone(1)
        with raises(Conflict):
            session.append(user("d"), guard=4)
        session.append(user("d"), guard=5)
        session = self._again(store, session)
        with raises(Conflict):
            session.append(user("e"), guard=4)
        session.append(user("e"), guard=5)
        assert [message.text for message in session.messages()] == ["b", "c", "d", "e"]

    def test_a_refused_value_writes_nothing(self) -> None:
        session = self._store().create()
        session.append(user("good"))
        deep: list[object] = []
        for _ in range(5000):
            deep = [deep]
        for bad in (
            Event(kind="x", data={"deep": deep}),
            Event(kind="x", data={"object": object()}),
        ):
            with raises(FormatError):
                session.append_many([user("before"), bad, user("after")])
        assert [record.seq for record in session.records()] == [1]

    def test_a_record_that_could_not_be_read_back_is_refused(self) -> None:
        session = self._store().create()
        wrong: list[Any] = [
            Message(role="system", content=(Text("x"),)),  # type: ignore[arg-type]
            user("x", sender=5),
            user("x", id=5),
            user("x", timestamp=5),
            user("x", model=object()),
            user("x", is_error="no"),
            user("x", usage={"inputTokens": "many"}),
            Message(role="user", content=("not a block",)),  # type: ignore[arg-type]
            Rewind(to_seq=-1),
            Tombstone(deletes=("1",)),  # type: ignore[arg-type]
            Compaction(first_kept_seq=1, summary=None),  # type: ignore[arg-type]
            Event(kind=3),  # type: ignore[arg-type]
            lines.from_object({"recordType": "message", "schemaVersion": 2, "content": []}),
        ]
        for record in wrong:
            with raises(FormatError):
                session.append(record)
        assert session.records() == []
        odd = Message(role="user", content=(Text(5),))  # type: ignore[arg-type]
        assert session.append(odd) == session.record(1)

    def test_what_json_cannot_hold_is_normalised(self) -> None:
        session = self._store().create()
        session.append(user("a\ud83db \0 \u2028 é"))
        stored = session.append(Event(kind="x", data={"nan": float("nan"), "inf": float("-inf")}))
        message, event = session.records()
        assert stored == event
        assert isinstance(message, Message)
        assert message.text == "a\ufffdb \0 \u2028 é"
        assert isinstance(event, Event)
        assert event.data == {"nan": None, "inf": None}

    def test_unknown_kinds_keys_and_blocks_survive(self) -> None:
        session = self._store().create()
        strange = lines.from_object({"recordType": "zebra", "stripes": [1, {"a": None}]})
        odd = lines.from_object(
            {
                "recordType": "message",
                "role": "user",
                "content": [
                    {"type": "hologram", "x": 1},
                    {"type": "text", "text": "t", "lang": "en"},
                ],
                "mood": "fine",
            }
        )
        session.append_many([strange, odd])
        first, second = session.records()
        assert b'"stripes":[1,{"a":null}]' in first.line
        assert b'"mood":"fine"' in second.line
        assert b'"lang":"en"' in second.line
        copied = self._store().create()
        copied.append_many([first, second])
        assert b'"stripes":[1,{"a":null}]' in copied.records()[0].line
        assert b'"lang":"en"' in copied.records()[1].line

    def test_concurrent_writers_lose_nothing_and_share_one_dense_numbering(self) -> None:
        store = self._store()
        session = store.create()
        errors: list[BaseException] = []

        def write(name: str) -> None:
            try:
                for number in range(25):
                    session.append(user(f"{name} {number}"))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(f"t{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert [record.seq for record in session.records()] == list(range(1, 201))
        texts = [message.text for message in session.messages()]
        for name in (f"t{n}" for n in range(8)):
            mine = [text for text in texts if text.startswith(f"{name} ")]
            assert mine == [f"{name} {number}" for number in range(25)]

    # --- limits and parts

    def test_a_log_rolls_over_and_reads_as_one(self) -> None:
        session = self._store(SMALL).create()
        texts = [f"{n} " + "x" * 300 for n in range(20)]
        session.append_many([user(text) for text in texts[:10]])
        for text in texts[10:]:
            session.append(user(text))
        assert len(session.parts) > 3
        assert all(part.bytes <= 2000 for part in session.parts)
        assert [message.text for message in session.messages()] == texts
        bounds = [(part.first_seq, part.last_seq) for part in session.parts]
        assert bounds[0][0] == 1
        for (_, last), (first, _) in pairwise(bounds):
            assert last is not None
            assert first == last + 1
        assert session.size == sum(part.bytes for part in session.parts)

    def test_an_empty_part_takes_a_line_larger_than_a_part(self) -> None:
        session = self._store(SMALL).create()
        session.append(user("y" * 3000))
        session.append(user("z"))
        assert [len(message.text) for message in session.messages()] == [3000, 1]

    def test_a_line_over_the_limit_is_refused(self) -> None:
        session = self._store(SMALL).create()
        with raises(StoreFull):
            session.append_many([user("small"), user("z" * 5000)])
        assert session.records() == []

    def test_a_full_session_refuses_messages_and_still_takes_markers(self) -> None:
        session = self._store(SMALL).create()
        with raises(StoreFull):
            for _ in range(100):
                session.append(user("x" * 1000))
        count = len(session.records())
        session.tombstone(1)
        session.rename("full")
        assert len(session.records()) == count + 2
        with raises(StoreFull):
            session.append(user("x" * 1000))

    def test_a_tombstone_acts_on_every_part(self) -> None:
        session = self._store(SMALL).create()
        session.append_many([user(f"{n} " + "x" * 300) for n in range(12)])
        assert len(session.parts) > 2
        session.tombstone(1, 5, 12)
        assert [message.seq for message in session.messages()] == [2, 3, 4, 6, 7, 8, 9, 10, 11]
        session.restore(5)
        assert 5 in [message.seq for message in session.messages()]

    # --- reading

    def test_read_takes_after_and_limit(self) -> None:
        session = self._store(SMALL).create()
        session.append_many([user(f"{n} " + "x" * 100) for n in range(1, 31)])
        assert [one.seq for one in session.records(after=10, limit=5)] == [11, 12, 13, 14, 15]
        assert [one.seq for one in session.records(after=28)] == [29, 30]
        assert session.records(after=30) == []
        assert session.records(limit=0) == []
        assert [one.seq for one in session.records(after=-1, limit=2)] == [0, 1]
        assert session.record(17).seq == 17
        with raises(NotFound):
            session.record(31)

    def test_tail_is_the_log_backwards(self) -> None:
        session = self._store(SMALL).create()
        session.append_many([user(f"{n} " + "x" * 200) for n in range(25)])
        backwards = list(session.store.port.tail(session.id))
        assert backwards == list(reversed(session.records()))

    def test_context_is_the_summary_and_what_it_kept(self) -> None:
        session = self._store().create()
        session.append_many([user("a"), assistant("b"), user("c"), assistant("d")])
        session.append(Compaction(first_kept_seq=3, summary="SUM"))
        session.append(user("e"))
        texts = [message.text for message in session.context().messages]
        assert texts[0].endswith("<summary>\nSUM\n</summary>")
        assert texts[1:] == ["c", "d", "e"]
        assert [message.text for message in session.messages()] == ["a", "b", "c", "d", "e"]

    def test_a_rewind_behind_a_compaction_brings_back_what_it_covered(self) -> None:
        session = self._store().create()
        session.append_many([user("a"), assistant("b"), user("c"), assistant("d")])
        session.append(Compaction(first_kept_seq=3, summary="SUM"))
        session.rewind(1)
        assert [message.text for message in session.context().messages] == ["a"]
        session.append(user("again"))
        assert [message.text for message in session.context().messages] == ["a", "again"]

    def test_deleting_one_half_of_an_exchange_deletes_the_exchange(self) -> None:
        session = self._store().create()
        call = assistant((ToolCall("c1", "ls", {}), ToolCall("c2", "ls", {})))
        session.append_many(
            [user("go"), call, tool_result("c1", "one"), tool_result("c2", "two"), assistant("ok")]
        )
        session.tombstone(3)
        assert [message.seq for message in session.messages()] == [1, 5]
        session.restore(2)
        assert [message.seq for message in session.messages()] == [1, 2, 3, 4, 5]

    def test_a_message_injected_for_one_run_is_skipped(self) -> None:
        session = self._store().create()
        recall = user("<recall>…</recall>", auto_injected=True)
        assert session.append(recall).seq == 0
        stored = session.append_many([user("a"), recall, assistant("b")])
        assert [one.seq for one in stored] == [1, 2]
        assert [message.text for message in session.messages()] == ["a", "b"]
        assert session.metadata.through.seq == 2

    # --- metadata, names, listing

    def test_metadata_follows_every_append(self) -> None:
        session = self._store().create()
        before = session.metadata
        message = session.append(user("one"))
        session.append(Event(kind="x"))
        after = session.metadata
        assert (before.message_count, after.message_count) == (0, 1)
        assert after.last_message_at == message.timestamp
        assert after.through.seq == 2

    def test_title_and_facts_survive_reopening(self) -> None:
        store = self._store()
        session = store.create(agent="a", source="cron", cron_job_id="nightly")
        session.rename("Fix tests")
        session.update(model="m2", system_prompt_override="short")
        before = session.metadata
        session = self._again(store, session)
        assert session.metadata == before
        assert session.metadata.title == "Fix tests"
        assert session.metadata.cron_job_id == "nightly"

    def test_turn_ends_add_up_to_uptime_and_metrics(self) -> None:
        session = self._store().create()
        session.end_turn(
            duration_ms=1500, usage=Usage(input_tokens=10, output_tokens=5), tool_calls=2
        )
        session.end_turn(duration_ms=700, usage=Usage(input_tokens=1, output_tokens=1), cost=0.25)
        metadata = session.metadata
        assert metadata.uptime_secs == 2
        assert metadata.metrics.total_turns == 2
        assert metadata.metrics.total_tokens.total_tokens == 17
        assert metadata.metrics.total_tool_calls == 2
        assert metadata.metrics.total_cost == 0.25

    def test_a_name_belongs_to_the_session_that_claimed_it_last(self) -> None:
        store = self._store()
        first = store.create(key="sk_v1_a", aliases=["agent:main:main"])
        second = store.create()
        assert store.session("sk_v1_a").id == first.id
        second.update(aliases=["agent:main:main"])
        assert store.session("agent:main:main").id == second.id
        assert store.session("sk_v1_a").id == first.id
        first.update(aliases=["agent:main:main", "agent:main:x"])
        assert store.session("agent:main:main").id == first.id
        second.update(aliases=None)
        first.update(aliases=None)
        with raises(NotFound):
            store.session("agent:main:main")
        with raises(NotFound):
            store.session("sk_v1_unknown")

    def test_an_unambiguous_beginning_of_an_id_serves(self) -> None:
        store = self._store()
        one, two = store.create(), store.create()
        assert store.session(one.id[:25]).id == one.id or one.id[:25] == two.id[:25]
        with raises(InvalidId):
            store.session(one.id[:5])

    def test_listing_is_sorted_by_the_last_message_and_pages(self) -> None:
        store = self._store()
        sessions = [store.create(agent="a" if n % 2 else "b", title=f"Title {n}") for n in range(9)]
        for number in (3, 1, 4, 0, 8, 5, 2, 6, 7):
            sessions[number].append(user("x", timestamp=f"2026-01-01T00:00:0{number}Z"))
        expected = [session.id for session in reversed(sessions)]
        assert [row.id for row in store.list()] == expected
        page = store.list(limit=4)
        found = [row.id for row in page]
        assert page.total == 9
        while page.next:
            page = store.list(limit=4, cursor=page.next)
            found += [row.id for row in page]
        assert found == expected
        assert {row.metadata.agent for row in store.list(agent="a")} == {"a"}
        assert store.list(agent="a").total == 4
        assert [row.id for row in store.list(title="TITLE 3")] == [sessions[3].id]
        assert len(store.list(since="2026-01-01T00:00:05Z")) == 4
        assert store.list(source="cron").total == 0
        for bad in ("x", "1-", "-5-A", "999999999999999999999-A"):
            with raises(FormatError):
                store.list(cursor=bad)
        with raises(FormatError):
            store.list(since="yesterday")
        with raises(FormatError):
            store.list(limit=0)

    # --- chats

    def test_chats_of_a_pair_are_numbered_and_the_newest_is_current(self) -> None:
        store = self._store()
        one, two = store.create(sender="tg:1"), store.create(sender="tg:1")
        for other in ("tg-1", "TG_1", "tg:1 "):  # pairs are compared exactly
            assert store.create(sender=other).metadata.chat == 1
        assert store.create(agent="b", sender="tg:1").metadata.chat == 1
        for agent, sender in (("crab_user", "1"), ("crab", "user_1"), ("crab", "user"), ("", "")):
            assert store.create(agent=agent, sender=sender).metadata.chat == 1
        assert (one.metadata.chat, two.metadata.chat) == (1, 2)
        assert _id(store.current(sender="tg:1")) == _id(store.latest(sender="tg:1")) == two.id
        assert store.current(sender="nobody") is None

    def test_a_resumed_chat_is_current_until_there_is_a_newer_one(self) -> None:
        port = self.open(Settings())
        store = Store(port)
        one, two = store.create(), store.create()
        one.resume()
        one.resume()
        store = Store(self.reopen(port))
        assert _id(store.current()) == one.id
        assert _id(store.latest()) == two.id
        three = store.create()
        assert _id(store.current()) == three.id
        assert three.metadata.chat == 3

    def test_chats_of_a_key_are_numbered_and_the_key_names_the_current_one(self) -> None:
        store = self._store()
        one = store.create(key="sk_v1_a", sender="x")
        two = store.create(key="sk_v1_a", sender="y")
        plain = store.create(sender="x")
        assert [s.metadata.chat for s in (one, two, plain)] == [1, 2, 1]
        assert store.session("sk_v1_a").id == _id(store.current(key="sk_v1_a")) == two.id
        one.update(aliases=["agent:a", "agent:mine"])
        two.update(aliases=["agent:a"])
        assert store.session("agent:a").id == two.id
        one.resume()
        for name in ("sk_v1_a", "agent:a", "agent:mine"):
            assert store.session(name).id == one.id
        two.append(user("still here"))
        assert store.session("sk_v1_a").id == one.id
        assert _id(store.latest(sender="x")) == plain.id

    def test_deleting_the_current_chat_gives_its_name_to_the_one_before(self) -> None:
        store = self._store()
        one = store.create(key="sk_v1_a")
        two = store.create(key="sk_v1_a")
        two.delete()
        assert store.session("sk_v1_a").id == one.id
        assert store.create(key="sk_v1_a").metadata.chat == 2

    def test_a_session_is_made_only_if_nobody_holds_its_key(self) -> None:
        port = self.open(Settings())
        made: list[str] = []

        def make() -> None:
            made.append(port.create({"key": "sk_v1_a"}, unless_held=True).id)

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 8 and len(set(made)) == 1

    def test_a_name_that_is_held_is_taken_only_by_who_says_so(self) -> None:
        port = self.open(Settings())
        one = port.create({"key": "sk_v1_a", "aliases": ["agent:main:direct:1"]}).id
        two = port.create({"key": "sk_v1_b"}).id
        aliases = {"aliases": ["agent:main:direct:1", "agent:main:direct:2"]}
        assert port.update(two, aliases, unless_held=True).aliases == ("agent:main:direct:2",)
        assert port.resolve("agent:main:direct:1") == one
        port.update(two, aliases)
        assert port.resolve("agent:main:direct:1") == two

    def test_a_history_is_promoted_once_for_ever(self) -> None:
        port = self.open(Settings())
        old, new, other = (port.create().id for _ in range(3))
        assert port.promote(old, new, seq=3)
        assert port.promote(old, new, seq=4)
        assert not port.promote(old, other, seq=3)
        again = self.reopen(port)
        assert not again.promote(old, other, seq=3)
        assert again.metadata(old).promoted_to == {"id": new, "seq": 3}

    def test_a_fork_is_a_chat_of_its_pair_and_takes_no_name(self) -> None:
        store = self._store()
        one = store.create(key="sk_v1_a", sender="x")
        one.append(user("hi"))
        first = store.create(sender="x")
        fork = one.fork()
        assert (fork.metadata.key, fork.metadata.chat) == (None, 2)
        assert store.session("sk_v1_a").id == one.id
        assert _id(store.current(sender="x")) == first.id

    def test_latest_is_the_newest_session_of_a_pair(self) -> None:
        store = self._store()
        old = store.create(sender="tg:1")
        new = store.create(sender="tg:1")
        store.create(sender="tg-1")
        old.append(user("later message in the older one"))
        latest = store.latest(sender="tg:1")
        assert latest is not None
        assert latest.id == new.id
        assert store.latest(sender="nobody") is None

    # --- turns, forks, deletion

    def test_one_turn_at_a_time(self) -> None:
        session = self._store().create()
        session.append_many([user("a"), assistant("b")])
        with session.lease() as lease:
            with raises(SessionBusy):
                session.lease()
            with raises(SessionBusy):
                session.rewind(1)
            with raises(SessionBusy):
                session.delete()
            session.append(user("appending needs no lease"))
            session.rewind(1, lease=lease)
        with raises(Conflict):
            session.append(user("x"), lease=lease)
        session.rewind(1)
        assert [message.text for message in session.messages()] == ["a"]

    def test_a_fork_shares_the_past_and_not_the_future(self) -> None:
        store = self._store()
        session = store.create(agent="a", title="Original", key="sk_v1_k")
        session.append_many([user("a"), assistant("b"), user("c")])
        fork = session.fork(at=2)
        assert [message.text for message in fork.messages()] == ["a", "b"]
        assert [one.line for one in fork.records()[:2]] == [
            one.line for one in session.records()[:2]
        ]
        assert fork.metadata.forked_from == {"id": session.id, "seq": 2}
        assert fork.metadata.agent == "a"
        assert store.session("sk_v1_k").id == session.id
        fork.append(user("other"))
        assert [message.text for message in session.messages()] == ["a", "b", "c"]
        assert fork.verify() == ()
        assert [message.text for message in session.fork().messages()] == ["a", "b", "c"]
        assert store.create().fork().messages() == []
        with raises(NotFound):
            session.fork(at=99)

    def test_a_deleted_session_is_gone(self) -> None:
        store = self._store()
        session, other = store.create(), store.create()
        session.append(user("x"))
        assert session.delete() == 1
        with raises(NotFound):
            session.append(user("y"))
        with raises(NotFound):
            session.messages()
        assert [row.id for row in store.list()] == [other.id]

    # --- reopening and crashes

    def test_everything_is_there_after_reopening(self) -> None:
        store = self._store(SMALL)
        session = store.create(title="T")
        session.append_many([user(f"{n} " + "x" * 300) for n in range(12)])
        session.tombstone(3)
        before = (session.records(), session.metadata, session.parts)
        session = self._again(store, session)
        assert (session.records(), session.metadata, session.parts) == before
        assert session.append(user("next")).seq == 14

    def test_a_torn_tail_costs_only_what_was_never_acknowledged(self) -> None:
        store = self._store()
        session = store.create()
        session.append_many([user("a"), user("b")])
        self.tear(store.port, session.id)
        assert [message.text for message in session.messages()] == ["a", "b"]
        session = self._again(store, session)
        assert session.append(user("c")).seq == 3
        assert [message.text for message in session.messages()] == ["a", "b", "c"]
        assert session.verify() == ()

    def test_every_record_type_reads_back_as_itself(self) -> None:
        session = self._store().create()
        kinds: list[AnyRecord] = [
            user("m"),
            Compaction(first_kept_seq=1, summary="s", tokens_before=5, read_files=("a",)),
            Tombstone(deletes=(1,)),
            Rewind(to_seq=1),
            Meta(set={"name": "n"}),
            Event(kind="queued", data={"id": "x"}),
        ]
        stored = session.append_many(kinds)
        assert [type(one) for one in session.records()] == [type(one) for one in kinds]
        assert session.records() == stored

    # --- help

    def _store(self, settings: Settings | None = None) -> Store:
        return Store(self.open(settings or Settings()))

    def _again(self, store: Store, session: Session) -> Session:
        return Store(self.reopen(store.port)).session(session.id)


@contextmanager
def raises(kind: type[HoldfastError]) -> Iterator[None]:
    """Exactly this kind of error must come out of the block."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
