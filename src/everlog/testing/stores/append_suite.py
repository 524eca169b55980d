"""Conformance tests for creating sessions and appending records."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, InvalidIdError, NotFoundError, StoreFullError
from everlog.log import line_codec
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    Message,
    Rewind,
    Text,
    Tombstone,
    Usage,
    assistant,
    tool_result,
    user,
)
from everlog.testing.stores.store_suite import SMALL, StoreSuite, raises


class AppendConformance(StoreSuite):
    """Records are numbered and stored unchanged, or refused as a whole."""

    # --- creation

    def test_a_new_session_is_empty_and_has_the_metadata_of_its_creation(self) -> None:
        store = self._open_store()
        session = store.create(agent="a", sender="tg:1", model="m", system_prompt_override="be kind")
        metadata = session.metadata
        assert (metadata.agent, metadata.sender, metadata.model) == ("a", "tg:1", "m")
        assert metadata.system_prompt_override == "be kind"
        assert metadata.message_count == 0
        assert metadata.last_message_at == metadata.created_at
        assert session.messages() == []
        assert session.records() == []
        assert session.size == 0

    def test_unknown_metadata_is_refused_and_creates_nothing(self) -> None:
        store = self._open_store()
        with raises(FormatError):
            store.port.create({"colour": "red"})
        with raises(FormatError):
            store.port.create({"messageCount": 7})
        assert len(store.list()) == 0

    def test_ids_sort_in_the_order_of_creation(self) -> None:
        store = self._open_store()
        ids = [store.create().id for _ in range(20)]
        assert ids == sorted(set(ids))

    def test_invalid_ids_are_refused_and_unknown_ids_are_not_found(self) -> None:
        store = self._open_store()
        valid = store.create().id
        for bad in ("../x", "x/y", "a" * 26, "x\0y", valid + "\n", "", "..", valid.lower()):
            with raises(NotFoundError if bad and bad.isprintable() else InvalidIdError):
                store.session(bad)
            with raises(InvalidIdError):
                store.port.append(bad, [user("x")])
            with raises(InvalidIdError):
                store.port.delete(bad)
        with raises(NotFoundError):
            store.session("0" * 26)
        with raises(NotFoundError):
            store.port.append("0" * 26, [user("x")])

    # --- appending

    def test_records_are_numbered_from_one_without_gaps(self) -> None:
        session = self._open_store().create()
        seqs = [session.append(user(str(n))).seq for n in range(5)]
        seqs += [record.seq for record in session.append_many([user("a"), assistant("b")])]
        assert seqs == [1, 2, 3, 4, 5, 6, 7]
        assert [record.seq for record in session.records()] == seqs

    def test_append_returns_the_records_that_are_read_back(self) -> None:
        session = self._open_store().create()
        records: list[AnyRecord] = [
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
        stored = session.append_many(records)
        read = session.records()
        assert stored == read
        assert [record.line for record in stored] == [record.line for record in read]
        assert isinstance(read[0], Message)
        assert read[0].id
        assert read[0].timestamp

    def test_a_stale_expected_seq_is_refused_and_writes_nothing(self) -> None:
        session = self._open_store().create()
        session.append(user("one"), expected_seq=0)
        with raises(ConflictError):
            session.append(user("two"), expected_seq=0)
        with raises(ConflictError):
            session.append(user("two"), expected_seq=2)
        assert len(session.records()) == 1
        assert session.append(user("two"), expected_seq=1).seq == 2

    def test_appending_an_id_again_returns_the_stored_record(self) -> None:
        session = self._open_store().create()
        first = session.append(user("pay 5", id="order-1"), expected_seq=0)
        again = session.append(user("pay 5", id="order-1"), expected_seq=0)
        assert again == first
        assert len(session.records()) == 1
        with raises(ConflictError):
            session.append(user("pay 6", id="order-1"))
        assert len(session.records()) == 1

    def test_a_partly_stored_batch_is_completed(self) -> None:
        session = self._open_store().create()
        session.append(user("a", id="1"), expected_seq=0)
        batch = [user("a", id="1"), user("b", id="2"), user("c", id="3")]
        assert [record.seq for record in session.append_many(batch, expected_seq=0)] == [1, 2, 3]
        assert [record.seq for record in session.append_many(batch, expected_seq=0)] == [1, 2, 3]
        assert [message.text for message in session.messages()] == ["a", "b", "c"]

    def test_an_id_older_than_the_last_1024_records_is_new_again(self) -> None:
        store = self._open_store()
        session = store.create()
        session.append(user("x", id="old"))
        session.append_many([user(str(n)) for n in range(1023)])
        assert session.append(user("x", id="old")).seq == 1
        session.append(user("one more"))
        assert session.append(user("x", id="old")).seq == 1026

    def test_ids_are_deduplicated_after_reopening(self) -> None:
        store = self._open_store()
        session = store.create()
        session.append(user("a", id="1"))
        session = self._reopen_session(store, session)
        assert session.append(user("a", id="1")).seq == 1
        assert len(session.records()) == 1

    def test_no_marker_after_refuses_only_if_a_later_marker_exists(self) -> None:
        store = self._open_store()
        session = store.create()
        session.append_many([user("a"), assistant("b"), user("c")])
        session.append(Event(kind="x"), no_marker_after=0)
        session.tombstone(1)
        with raises(ConflictError):
            session.append(user("d"), no_marker_after=4)
        session.append(user("d"), no_marker_after=5)
        session = self._reopen_session(store, session)
        with raises(ConflictError):
            session.append(user("e"), no_marker_after=4)
        session.append(user("e"), no_marker_after=5)
        assert [message.text for message in session.messages()] == ["b", "c", "d", "e"]

    def test_a_refused_value_writes_nothing(self) -> None:
        session = self._open_store().create()
        session.append(user("good"))
        deep: list[object] = []
        for _ in range(5000):
            deep = [deep]
        for bad in (Event(kind="x", data={"deep": deep}), Event(kind="x", data={"object": object()})):
            with raises(FormatError):
                session.append_many([user("before"), bad, user("after")])
        assert [record.seq for record in session.records()] == [1]

    def test_a_record_that_could_not_be_read_back_is_refused(self) -> None:
        session = self._open_store().create()
        invalid: list[Any] = [
            Message(role="system", content=(Text("x"),)),  # type: ignore[arg-type]
            replace(user("x"), sender=5),
            replace(user("x"), id=5),
            replace(user("x"), timestamp=5),
            replace(user("x"), model=object()),
            replace(user("x"), is_error="no"),
            replace(user("x"), usage={"inputTokens": "many"}),
            Message(role="user", content=("not a block",)),  # type: ignore[arg-type]
            Rewind(to_seq=-1),
            Tombstone(deletes=("1",)),  # type: ignore[arg-type]
            Compaction(first_kept_seq=1, summary=None),  # type: ignore[arg-type]
            Event(kind=3),  # type: ignore[arg-type]
            line_codec.from_object({"recordType": "message", "schemaVersion": 2, "content": []}),
        ]
        for record in invalid:
            with raises(FormatError):
                session.append(record)
        assert session.records() == []
        odd = Message(role="user", content=(Text(5),))  # type: ignore[arg-type]
        assert session.append(odd) == session.record(1)

    def test_values_that_json_cannot_represent_are_normalized(self) -> None:
        session = self._open_store().create()
        session.append(user("a\ud83db \0 \u2028 é"))
        stored = session.append(Event(kind="x", data={"nan": float("nan"), "inf": float("-inf")}))
        message, event = session.records()
        assert stored == event
        assert isinstance(message, Message)
        assert message.text == "a\ufffdb \0 \u2028 é"
        assert isinstance(event, Event)
        assert event.data == {"nan": None, "inf": None}

    def test_unknown_kinds_keys_and_blocks_survive(self) -> None:
        session = self._open_store().create()
        unknown_kind = line_codec.from_object({"recordType": "zebra", "stripes": [1, {"a": None}]})
        unknown_keys = line_codec.from_object(
            {
                "recordType": "message",
                "role": "user",
                "content": [{"type": "hologram", "x": 1}, {"type": "text", "text": "t", "lang": "en"}],
                "mood": "fine",
            }
        )
        session.append_many([unknown_kind, unknown_keys])
        first, second = session.records()
        assert b'"stripes":[1,{"a":null}]' in first.line
        assert b'"mood":"fine"' in second.line
        assert b'"lang":"en"' in second.line
        copied = self._open_store().create()
        copied.append_many([first, second])
        assert b'"stripes":[1,{"a":null}]' in copied.records()[0].line
        assert b'"lang":"en"' in copied.records()[1].line

    def test_concurrent_writers_lose_nothing_and_share_one_dense_numbering(self) -> None:
        store = self._open_store()
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
            own_texts = [text for text in texts if text.startswith(f"{name} ")]
            assert own_texts == [f"{name} {number}" for number in range(25)]

    # --- limits and parts

    def test_a_log_rolls_over_and_reads_as_one(self) -> None:
        session = self._open_store(SMALL).create()
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

    def test_an_empty_part_accepts_a_line_larger_than_a_part(self) -> None:
        session = self._open_store(SMALL).create()
        session.append(user("y" * 3000))
        session.append(user("z"))
        assert [len(message.text) for message in session.messages()] == [3000, 1]

    def test_a_line_over_the_limit_is_refused(self) -> None:
        session = self._open_store(SMALL).create()
        with raises(StoreFullError):
            session.append_many([user("small"), user("z" * 5000)])
        assert session.records() == []

    def test_a_full_session_refuses_messages_and_still_accepts_markers(self) -> None:
        session = self._open_store(SMALL).create()
        with raises(StoreFullError):
            for _ in range(100):
                session.append(user("x" * 1000))
        count = len(session.records())
        session.tombstone(1)
        session.rename("full")
        assert len(session.records()) == count + 2
        with raises(StoreFullError):
            session.append(user("x" * 1000))

    def test_a_tombstone_applies_to_every_part(self) -> None:
        session = self._open_store(SMALL).create()
        session.append_many([user(f"{n} " + "x" * 300) for n in range(12)])
        assert len(session.parts) > 2
        session.tombstone(1, 5, 12)
        assert [message.seq for message in session.messages()] == [2, 3, 4, 6, 7, 8, 9, 10, 11]
        session.restore(5)
        assert 5 in [message.seq for message in session.messages()]
