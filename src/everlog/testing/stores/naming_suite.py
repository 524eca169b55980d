"""Conformance tests for metadata, keys, aliases, chats and listings."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from everlog.errors import ConflictError, FormatError, InvalidIdError, NotFoundError
from everlog.model import Event, Meta, Usage, user
from everlog.ports import Chats
from everlog.session import Session, Store
from everlog.settings import Settings
from everlog.testing.stores.store_suite import StoreSuite, raises
from everlog.testing.stores.unknown_session import check_unknown, check_unknown_name, check_unknown_session


def _id(session: Session | None) -> str | None:
    return None if session is None else session.id


class NamingConformance(StoreSuite):
    """Metadata, keys, aliases, chats and listings follow the log."""

    # --- metadata, names, listing

    def test_metadata_follows_every_append(self) -> None:
        session = self._open_store().create()
        before = session.metadata
        message = session.append(user("one"))
        session.append(Event(kind="x"))
        after = session.metadata
        assert (before.message_count, after.message_count) == (0, 1)
        assert after.last_message_at == message.timestamp
        assert after.through.seq == 2

    def test_title_and_metadata_survive_reopening(self) -> None:
        store = self._open_store()
        session = store.create(agent="a", source="cron", cron_job_id="nightly")
        session.rename("Fix tests")
        session.update(model="m2", system_prompt_override="short")
        before = session.metadata
        session = self._reopen_session(store, session)
        assert session.metadata == before
        assert session.metadata.display_title == "Fix tests"
        assert session.metadata.cron_job_id == "nightly"

    def test_turn_ends_add_up_to_uptime_and_metrics(self) -> None:
        session = self._open_store().create()
        session.end_turn(duration_ms=1500, usage=Usage(input_tokens=10, output_tokens=5), tool_calls=2)
        session.end_turn(duration_ms=700, usage=Usage(input_tokens=1, output_tokens=1), cost=0.25)
        metadata = session.metadata
        assert metadata.uptime_secs == 2
        assert metadata.metrics.total_turns == 2
        assert metadata.metrics.total_tokens.total_tokens == 17
        assert metadata.metrics.total_tool_calls == 2
        assert metadata.metrics.total_cost == 0.25

    def test_a_name_belongs_to_the_session_that_claimed_it_last(self) -> None:
        store = self._open_store()
        first = store.create(key="sk_v1_a", aliases=["agent:main:main"])
        second = store.create()
        assert store.session("sk_v1_a").id == first.id
        second.update(aliases=["agent:main:main"])
        assert store.session("agent:main:main").id == second.id
        assert store.session("sk_v1_a").id == first.id
        first.update(aliases=["agent:main:main", "agent:main:x"])
        assert store.session("agent:main:main").id == first.id
        second.update(aliases=())
        first.update(aliases=())
        with raises(NotFoundError):
            store.session("agent:main:main")
        with raises(NotFoundError):
            store.session("sk_v1_unknown")

    def test_an_unknown_session_is_one_error_whatever_is_asked_of_it(self) -> None:
        store = self._open_store()
        store.create()
        for name in ("0" * 26, "support-42", "258c72", "agent:main:direct:7"):
            check_unknown_name(store.port, name)
            check_unknown(store.session, name)
        check_unknown_session(store.port, "0" * 26)
        check_unknown(store.port.resume, "0" * 26)

    def test_a_prefix_of_an_id_resolves_only_on_request(self) -> None:
        store = self._open_store()
        first, second = store.create(), store.create()
        if first.id[:25] != second.id[:25]:
            assert store.port.resolve(first.id[:25], prefix=True) == first.id
        for prefix in (first.id[:5], first.id[:25]):
            with raises(NotFoundError):
                store.session(prefix)
        with raises(NotFoundError):
            store.port.resolve(first.id[:5], prefix=True)

    def test_the_beginning_of_a_key_or_alias_resolves_on_request_if_one_session_has_it(self) -> None:
        store = self._open_store()
        named = store.create(key="claude:258c72ab-0f", aliases=["258c72ab-0f", "258c72ab-0g"])
        other = store.create(aliases=["258c73-Zoë"], agent="258c74", sender="x")
        for prefix in ("258c72", "258c72ab-0f", "claude:258c72"):
            assert store.port.resolve(prefix, prefix=True) == named.id
        assert store.port.resolve("258c73-Zo", prefix=True) == other.id
        with raises(NotFoundError):
            store.session("258c72")
        with raises(NotFoundError):
            store.port.resolve("258c74", prefix=True)  # an agent is no name
        store.create(aliases=["258c73-other"])
        with raises(ConflictError):
            store.port.resolve("258c73", prefix=True)

    def test_a_session_is_created_once_under_an_id_of_the_caller(self) -> None:
        store = self._open_store()
        existing = store.create()
        for name in ("support-42", "a/b", "..", existing.id[:8], "0" * 26, "Zoë 7"):
            with raises(NotFoundError):
                store.session(name)
            session = store.session(name, create=True, agent="helper", title="Help")
            assert session != existing and session == store.session(name)
            assert session == store.session(name, create=True, agent="other")
            metadata = session.metadata
            assert (metadata.agent, metadata.title) == ("helper", "Help")
            assert metadata.aliases == (name,)
        assert store.session(existing.id, create=True) == existing
        for bad in ("", "a\0b", "a\nb", "x" * 501):
            with raises(InvalidIdError):
                store.session(bad, create=True)
        assert store.list().total == 7

    def test_of_many_callers_that_create_a_session_at_once_one_does(self) -> None:
        store = self._open_store()
        with ThreadPoolExecutor(8) as pool:
            sessions = set(pool.map(lambda _: store.session("one", create=True), range(16)))
        assert len(sessions) == 1 and store.list().total == 1

    def test_listing_is_sorted_by_the_last_message_and_paged(self) -> None:
        store = self._open_store()
        sessions = [store.create(agent="a" if n % 2 else "b", title=f"Title {n}") for n in range(9)]
        for number in (3, 1, 4, 0, 8, 5, 2, 6, 7):
            sessions[number].append(user("x", timestamp=f"2026-01-01T00:00:0{number}Z"))
        expected = [session.id for session in reversed(sessions)]
        assert [row.id for row in store.list()] == expected
        page = store.list(limit=4)
        ids = [row.id for row in page]
        assert page.total == 9
        while page.next:
            page = store.list(limit=4, cursor=page.next)
            ids += [row.id for row in page]
        assert ids == expected
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

    def test_chats_of_an_agent_and_sender_are_numbered_and_the_newest_is_current(self) -> None:
        store = self._open_store()
        first, second = store.create(sender="tg:1"), store.create(sender="tg:1")
        for other in ("tg-1", "TG_1", "tg:1 "):  # pairs are compared exactly
            assert store.create(sender=other).metadata.chat == 1
        assert store.create(agent="b", sender="tg:1").metadata.chat == 1
        for agent, sender in (("crab_user", "1"), ("crab", "user_1"), ("crab", "user"), ("", "")):
            assert store.create(agent=agent, sender=sender).metadata.chat == 1
        assert (first.metadata.chat, second.metadata.chat) == (1, 2)
        assert _id(store.current(sender="tg:1")) == _id(store.latest(sender="tg:1")) == second.id
        assert store.current(sender="nobody") is None

    def test_a_resumed_chat_is_current_until_there_is_a_newer_one(self) -> None:
        port = self.open(Settings())
        store = Store(port)
        first, second = store.create(), store.create()
        first.resume()
        first.resume()
        store = Store(self.reopen(port))
        assert _id(store.current()) == first.id
        assert _id(store.latest()) == second.id
        third = store.create()
        assert _id(store.current()) == third.id
        assert third.metadata.chat == 3

    def test_chats_of_a_key_are_numbered_and_the_key_names_the_current_one(self) -> None:
        store = self._open_store()
        first = store.create(key="sk_v1_a", sender="x")
        second = store.create(key="sk_v1_a", sender="y")
        without_key = store.create(sender="x")
        assert [s.metadata.chat for s in (first, second, without_key)] == [1, 2, 1]
        assert store.session("sk_v1_a").id == _id(store.current(key="sk_v1_a")) == second.id
        first.update(aliases=["agent:a", "agent:mine"])
        second.update(aliases=["agent:a"])
        assert store.session("agent:a").id == second.id
        first.resume()
        for name in ("sk_v1_a", "agent:a", "agent:mine"):
            assert store.session(name).id == first.id
        second.append(user("still here"))
        assert store.session("sk_v1_a").id == first.id
        assert _id(store.latest(sender="x")) == without_key.id

    def test_an_unnumbered_chat_of_an_older_version_is_the_chat_of_its_key(self) -> None:
        port = self.open(Settings())
        old = port.create({"key": "sk_v1_a", "aliases": ["agent:a"]}).id
        port.append(old, [user("x"), Meta(set={"chat": None})])
        port = self.reopen(port)
        assert port.metadata(old).chat is None
        assert port.chats("sk_v1_a") == Chats(old, old, 0)
        new = port.create({"key": "sk_v1_a"})
        assert (new.chat, port.chats("sk_v1_a")) == (1, Chats(new.id, new.id, 1))

    def test_deleting_the_current_chat_gives_its_key_to_the_previous_one(self) -> None:
        store = self._open_store()
        first = store.create(key="sk_v1_a")
        second = store.create(key="sk_v1_a")
        second.delete()
        assert store.session("sk_v1_a").id == first.id
        assert store.create(key="sk_v1_a").metadata.chat == 2

    def test_a_session_is_created_only_if_no_other_holds_its_key(self) -> None:
        port = self.open(Settings())
        ids: list[str] = []

        def create() -> None:
            ids.append(port.create({"key": "sk_v1_a"}, unless_held=True).id)

        threads = [threading.Thread(target=create) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 8 and len(set(ids)) == 1

    def test_an_alias_of_another_session_is_taken_only_on_request(self) -> None:
        port = self.open(Settings())
        first = port.create({"key": "sk_v1_a", "aliases": ["agent:main:direct:1"]}).id
        second = port.create({"key": "sk_v1_b"}).id
        aliases = {"aliases": ["agent:main:direct:1", "agent:main:direct:2"]}
        assert port.update(second, aliases, unless_held=True).aliases == ("agent:main:direct:2",)
        assert port.resolve("agent:main:direct:1") == first
        port.update(second, aliases)
        assert port.resolve("agent:main:direct:1") == second

    def test_a_history_is_promoted_only_once(self) -> None:
        port = self.open(Settings())
        old, new, other = (port.create().id for _ in range(3))
        assert port.promote(old, new, seq=3)
        assert port.promote(old, new, seq=4)
        assert not port.promote(old, other, seq=3)
        reopened = self.reopen(port)
        assert not reopened.promote(old, other, seq=3)
        assert reopened.metadata(old).promoted_to == {"id": new, "seq": 3}

    def test_a_fork_is_a_chat_of_its_agent_and_sender_and_takes_no_key(self) -> None:
        store = self._open_store()
        original = store.create(key="sk_v1_a", sender="x")
        original.append(user("hi"))
        chat = store.create(sender="x")
        fork = original.fork()
        assert (fork.metadata.key, fork.metadata.chat) == (None, 2)
        assert store.session("sk_v1_a").id == original.id
        assert _id(store.current(sender="x")) == chat.id

    def test_latest_is_the_newest_session_of_an_agent_and_sender(self) -> None:
        store = self._open_store()
        old = store.create(sender="tg:1")
        new = store.create(sender="tg:1")
        store.create(sender="tg-1")
        old.append(user("later message in the older one"))
        latest = store.latest(sender="tg:1")
        assert latest is not None
        assert latest.id == new.id
        assert store.latest(sender="nobody") is None
