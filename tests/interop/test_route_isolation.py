"""A message of one user never reaches a session of another, whatever lies in the directory."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everlog
from everlog.identity.key import main_agent, main_key
from everlog.identity.route import Routed, Router, Routing
from everlog.identity.scope import Inbound
from everlog.interop.formats.crabtalk.names import slug
from everlog.promotion import make_router
from everlog.settings import SessionSettings, Settings
from tests.foreign.foreign_directories import crabtalk_file, made, picoclaw_files

IDS = ("7", "42", "-1/42", "-1_42", "Cx")
CONTEXTS = st.builds(
    Inbound,
    channel=st.sampled_from(("telegram", "slack", "TELEGRAM")),
    account=st.sampled_from(("", "bot_2")),
    chat_type=st.sampled_from(("direct", "group", "")),
    chat_id=st.sampled_from(IDS),
    topic_id=st.sampled_from(("", "1", "2")),
    sender_id=st.sampled_from(IDS),
)
DIMENSIONS = st.sampled_from((("chat",), ("sender",), ("chat", "sender"), ("chat", "topic"), ()))
ARRIVALS = st.lists(st.tuples(CONTEXTS, st.sampled_from(("", "", "", "own", "main", "explicit", "new"))), max_size=8)


@st.composite
def left_sessions(draw: st.DrawFn, contexts: list[Inbound], router: Router) -> dict[str, bytes]:
    """Files that PicoClaw may have left: canonical and legacy ones, with any aliases and any metadata."""
    files: dict[str, bytes] = {}
    routes = [router.route(context) for context in contexts]
    keys = sorted({name for routed in routes for name in (routed.session_key, *routed.aliases, routed.main_key)})
    for key in draw(st.lists(st.sampled_from(keys), unique=True, max_size=5)) if keys else ():
        new = picoclaw_files(key)
        if new.keys() & files.keys():
            continue  # another key that has the same file
        (meta_name,) = (name for name in new if name.endswith(".meta.json"))
        meta = json.loads(new[meta_name])
        owner = next((routed for routed in routes if key == routed.session_key), None)
        if owner is not None and draw(st.booleans()):
            meta["scope"] = {"version": 1, **_scope(owner)}
        meta["aliases"] = draw(st.lists(st.sampled_from(keys), unique=True, max_size=4))
        if owner is None or "scope" not in meta:  # only a session without a scope lists opaque keys
            meta["aliases"] = [name for name in meta["aliases"] if not name.startswith("sk_")]
        content = {"ok": json.dumps(meta).encode(), "garbled": b'{"key": "ag'}.get(
            draw(st.sampled_from(("ok", "ok", "garbled")))
        )
        files |= {**new, meta_name: content or b""}
    return files


def _scope(routed: Routed) -> dict[str, Any]:
    scope = routed.scope
    values = {"agent_id": scope.agent_id, "channel": scope.channel, "account": scope.account}
    return {**values, "dimensions": scope.dimensions, "values": scope.values}


@pytest.mark.parametrize("kind", ["native", "picoclaw"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), arrivals=ARRIVALS, dimensions=DIMENSIONS)
def test_no_message_reaches_the_session_of_another_user(
    kind: str, data: st.DataObject, arrivals: list[tuple[Inbound, str]], dimensions: tuple[str, ...]
) -> None:
    router = Router(Routing(dimensions=dimensions))
    contexts = [context for context, _ in arrivals]
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        files = data.draw(left_sessions(contexts, router)) if kind == "picoclaw" else {}
        place = made(base / "place", files)
        place.mkdir(exist_ok=True)
        location = f"picoclaw:{place}" if kind == "picoclaw" else f"native:{place}"
        chosen = Settings(session=SessionSettings(durability="os"))
        with everlog.open_store(location, home=base / "home", create=True, settings=chosen) as store:
            reached: dict[str, set[str]] = defaultdict(set)  # session → whose messages it got
            before = {row.id: row.metadata.key or row.id for row in store.list(limit=100)}
            for context, how in arrivals:
                incoming = {
                    "own": f"{context.channel}-mine",
                    "main": "agent:main:main",
                    "explicit": router.route(context).aliases[-1],
                }.get(how, "")
                routed = router.route(context, incoming)
                owner = "main" if main_agent(routed.session_key) else router.route(context).session_key
                try:
                    session = store.route_to_session(routed, incoming=incoming, new_chat=how == "new")
                except everlog.ConflictError:
                    continue  # the file of its key is that of another key: refused, and nothing written
                session.append(owner)
                if how == "explicit":
                    continue  # who brings the name of a session is let into it
                reached[session.id].add(owner)
                left = before.get(session.id, "")
                assert left in ("", owner, session.id) or (
                    owner == "main" and left in ("agent:main:main", main_key("main"))
                )
            assert all(len(owners) == 1 for owners in reached.values()), reached


SENDERS = ("user", "tg:1", "tg-1", "TG:1", "telegram:tg:1", "7", "")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arrivals=st.lists(
        st.builds(
            Inbound,
            channel=st.sampled_from(("telegram", "slack", "cli", "")),
            account=st.sampled_from(("", "bot_2")),
            chat_id=st.sampled_from(IDS),
            sender_id=st.sampled_from(SENDERS),
        ),
        max_size=8,
    ),
    left=st.lists(st.sampled_from(SENDERS[:-1]), unique=True, max_size=4),
)
def test_senders_of_crabtalk_stay_apart(arrivals: list[Inbound], left: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        files = {f"crab_{slug(name)}_{at}.jsonl": crabtalk_file(sender=name) for at, name in enumerate(left, 1)}
        place = made(base / "place", files)
        place.mkdir(exist_ok=True)
        with everlog.open_store(f"crabtalk:{place}", home=base / "home") as store:
            router = make_router(store.port, store.settings)
            reached: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
            for inbound in arrivals:
                facts = router.facts(inbound)
                session = store.route_to_session(router.route(inbound), sender=facts.sender or None)
                session.append("hello")
                local = "user" if facts.channel in ("", "cli") else ""
                reached[session.id].add((facts.channel, facts.account, facts.sender or local))
                sender = session.metadata.sender
                assert facts.sender in ("", sender.lower()) or f":{facts.sender}" in sender
            assert all(len(owners) == 1 for owners in reached.values()), reached
