"""What every store knows its sessions by; part of its conformance."""

from __future__ import annotations

import threading

from everlog.errors import (
    FormatError,
    InvalidIdError,
    NotFoundError,
)
from everlog.model import (
    Event,
    Meta,
    Usage,
    user,
)
from everlog.ports import Chats
from everlog.session import Session, Store
from everlog.settings import Settings
from everlog.testing.stores.store_suite import Suite, raises


def _id(session: Session | None) -> str | None:
    return None if session is None else session.id


class NamingConformance(Suite):
    """Metadata, names, chats and listings follow the log."""

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
        with raises(NotFoundError):
            store.session("agent:main:main")
        with raises(NotFoundError):
            store.session("sk_v1_unknown")

    def test_an_unambiguous_beginning_of_an_id_serves(self) -> None:
        store = self._store()
        one, two = store.create(), store.create()
        assert store.session(one.id[:25]).id == one.id or one.id[:25] == two.id[:25]
        with raises(InvalidIdError):
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

    def test_a_chat_from_before_there_were_numbers_is_that_of_its_key(self) -> None:
        port = self.open(Settings())
        old = port.create({"key": "sk_v1_a", "aliases": ["agent:a"]}).id
        port.append(old, [user("x"), Meta(set={"chat": None})])
        port = self.reopen(port)
        assert port.metadata(old).chat is None
        assert port.chats("sk_v1_a") == Chats(old, old, 0)
        new = port.create({"key": "sk_v1_a"})
        assert (new.chat, port.chats("sk_v1_a")) == (1, Chats(new.id, new.id, 1))

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
