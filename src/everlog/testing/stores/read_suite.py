"""Conformance tests for reading, turns, forks, deletion and crash recovery."""

from __future__ import annotations

from everlog.errors import ConflictError, NotFoundError, SessionBusyError
from everlog.model import AnyRecord, Compaction, Event, Meta, Rewind, Tombstone, ToolCall, assistant, tool_result, user
from everlog.ports.capabilities import CAPABILITIES
from everlog.testing.stores.store_suite import SMALL, StoreSuite, raises


class _NoCapability:
    """What no store can do."""


class ReadConformance(StoreSuite):
    """Acknowledged records are read back in order, also after a crash."""

    # --- capabilities

    def test_a_capability_is_an_object_with_its_methods_or_none(self) -> None:
        store = self._open_store()
        for kind in CAPABILITIES:
            capable = store.port.capability(kind)
            names: list[str] = [] if capable is None else [name for name in vars(kind) if not name.startswith("_")]
            assert all(hasattr(capable, name) for name in names), kind.__name__
        assert store.port.capability(_NoCapability) is None

    # --- reading

    def test_read_accepts_after_and_limit(self) -> None:
        session = self._open_store(SMALL).create()
        session.append_many([user(f"{n} " + "x" * 100) for n in range(1, 31)])
        assert [record.seq for record in session.records(after=10, limit=5)] == [11, 12, 13, 14, 15]
        assert [record.seq for record in session.records(after=28)] == [29, 30]
        assert session.records(after=30) == []
        assert session.records(limit=0) == []
        assert [record.seq for record in session.records(after=-1, limit=2)] == [0, 1]
        assert session.record(17).seq == 17
        with raises(NotFoundError):
            session.record(31)

    def test_tail_is_the_log_backwards(self) -> None:
        session = self._open_store(SMALL).create()
        session.append_many([user(f"{n} " + "x" * 200) for n in range(25)])
        backwards = list(session.store.port.tail(session.id))
        assert backwards == list(reversed(session.records()))

    def test_context_is_the_summary_and_the_messages_it_kept(self) -> None:
        session = self._open_store().create()
        session.append_many([user("a"), assistant("b"), user("c"), assistant("d")])
        session.append(Compaction(first_kept_seq=3, summary="SUM"))
        session.append(user("e"))
        texts = [message.text for message in session.context().messages]
        assert texts[0].endswith("<summary>\nSUM\n</summary>")
        assert texts[1:] == ["c", "d", "e"]
        assert [message.text for message in session.messages()] == ["a", "b", "c", "d", "e"]

    def test_a_rewind_past_a_compaction_restores_the_messages_it_covered(self) -> None:
        session = self._open_store().create()
        session.append_many([user("a"), assistant("b"), user("c"), assistant("d")])
        session.append(Compaction(first_kept_seq=3, summary="SUM"))
        session.rewind(1)
        assert [message.text for message in session.context().messages] == ["a"]
        session.append(user("again"))
        assert [message.text for message in session.context().messages] == ["a", "again"]

    def test_deleting_half_of_a_tool_exchange_deletes_all_of_it(self) -> None:
        session = self._open_store().create()
        call = assistant((ToolCall("c1", "ls", {}), ToolCall("c2", "ls", {})))
        session.append_many([user("go"), call, tool_result("c1", "one"), tool_result("c2", "two"), assistant("ok")])
        session.tombstone(3)
        assert [message.seq for message in session.messages()] == [1, 5]
        session.restore(2)
        assert [message.seq for message in session.messages()] == [1, 2, 3, 4, 5]

    def test_an_auto_injected_message_is_not_stored(self) -> None:
        session = self._open_store().create()
        recall = user("<recall>…</recall>", auto_injected=True)
        assert session.append(recall).seq == 0
        stored = session.append_many([user("a"), recall, assistant("b")])
        assert [record.seq for record in stored] == [1, 2]
        assert [message.text for message in session.messages()] == ["a", "b"]
        assert session.metadata.through.seq == 2

    # --- turns, forks, deletion

    def test_only_one_turn_runs_at_a_time(self) -> None:
        session = self._open_store().create()
        session.append_many([user("a"), assistant("b")])
        with session.lease() as lease:
            with raises(SessionBusyError):
                session.lease()
            with raises(SessionBusyError):
                session.rewind(1)
            with raises(SessionBusyError):
                session.delete()
            session.append(user("appending needs no lease"))
            session.rewind(1, lease=lease)
        with raises(ConflictError):
            session.append(user("x"), lease=lease)
        session.rewind(1)
        assert [message.text for message in session.messages()] == ["a"]

    def test_a_fork_shares_earlier_messages_and_no_later_ones(self) -> None:
        store = self._open_store()
        session = store.create(agent="a", title="Original", key="sk_v1_k")
        session.append_many([user("a"), assistant("b"), user("c")])
        fork = session.fork(at=2)
        assert [message.text for message in fork.messages()] == ["a", "b"]
        assert [record.line for record in fork.records()[:2]] == [record.line for record in session.records()[:2]]
        assert fork.metadata.forked_from == {"id": session.id, "seq": 2}
        assert fork.metadata.agent == "a"
        assert store.session("sk_v1_k").id == session.id
        fork.append(user("other"))
        assert [message.text for message in session.messages()] == ["a", "b", "c"]
        assert fork.verify() == ()
        assert [message.text for message in session.fork().messages()] == ["a", "b", "c"]
        assert store.create().fork().messages() == []
        with raises(NotFoundError):
            session.fork(at=99)

    def test_a_deleted_session_is_not_found(self) -> None:
        store = self._open_store()
        session, other = store.create(), store.create()
        session.append(user("x"))
        assert session.delete() == 1
        with raises(NotFoundError):
            session.append(user("y"))
        with raises(NotFoundError):
            session.messages()
        assert [row.id for row in store.list()] == [other.id]

    def test_reading_during_a_deletion_returns_everything_or_raises(self) -> None:
        store = self._open_store()
        for backwards in (False, True):
            session = store.create()
            session.append_many([user(f"{n}") for n in range(1500)])
            other = self.reopen(store.port)
            entries = other.tail(session.id) if backwards else other.read(session.id)
            seqs = [next(entries).seq]
            session.delete()
            try:
                seqs += [record.seq for record in entries]
            except NotFoundError:
                continue
            assert sorted(seq or 0 for seq in seqs) == list(range(1, 1501))

    # --- reopening and crashes

    def test_reopening_preserves_everything(self) -> None:
        store = self._open_store(SMALL)
        session = store.create(title="T")
        session.append_many([user(f"{n} " + "x" * 300) for n in range(12)])
        session.tombstone(3)
        before = (session.records(), session.metadata, session.parts)
        session = self._reopen_session(store, session)
        assert (session.records(), session.metadata, session.parts) == before
        assert session.append(user("next")).seq == 14

    def test_a_torn_tail_loses_only_unacknowledged_records(self) -> None:
        store = self._open_store()
        session = store.create()
        session.append_many([user("a"), user("b")])
        self.tear(store.port, session.id)
        assert [message.text for message in session.messages()] == ["a", "b"]
        session = self._reopen_session(store, session)
        assert session.append(user("c")).seq == 3
        assert [message.text for message in session.messages()] == ["a", "b", "c"]
        assert session.verify() == ()

    def test_every_record_type_reads_back_as_itself(self) -> None:
        session = self._open_store().create()
        records: list[AnyRecord] = [
            user("m"),
            Compaction(first_kept_seq=1, summary="s", tokens_before=5, read_files=("a",)),
            Tombstone(deletes=(1,)),
            Rewind(to_seq=1),
            Meta(set={"name": "n"}),
            Event(kind="queued", data={"id": "x"}),
        ]
        stored = session.append_many(records)
        assert [type(record) for record in session.records()] == [type(record) for record in records]
        assert session.records() == stored
