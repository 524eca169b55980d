"""Every format as every other one, through a store."""

from __future__ import annotations

from typing import Any

import pytest

from everlog.interop.exporter import export
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.format_types import InMemorySource
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.importer import import_session
from everlog.session import Session, Store
from everlog.stores.in_memory import InMemoryStore
from tests.formats.round_trips import golden

DIALECTS: tuple[Any, ...] = (cersei, crabtalk, pi, picoclaw)
SESSIONS: tuple[tuple[Any, str], ...] = (
    (crabtalk, "crab_tg-12345_2_fix-the-build"),
    (picoclaw, "agent_main_direct_42"),
    (cersei, "7d1f0a52-58c1-4e0e-9d67-2b1f6f0e9a01"),
    (cersei, "bare"),
    (pi, "2026-01-05T09-00-00-000Z_0198f3c2-7b6e-7d10-8a55-1f2e3d4c5b6a"),
    (pi, "2025-11-20T09-00-00-000Z_v1"),
)


@pytest.mark.parametrize(("source", "name"), SESSIONS, ids=[name for _, name in SESSIONS])
@pytest.mark.parametrize("target", DIALECTS, ids=lambda one: one.NAME)
def test_a_session_says_the_same_in_another_format(source: Any, name: str, target: Any) -> None:
    with Store(InMemoryStore()) as store, Store(InMemoryStore()) as other:
        first = brought(store, source, golden(source.NAME, name))
        written = export(first, target)
        path = next(iter(written.files))
        head = written.files[path][:65536]
        assert [one for one in DIALECTS if one.recognises(path, head)] == [target]
        second = brought(other, target, InMemorySource(path.removesuffix(".jsonl"), written.files))
        assert said(second) == said(first)
        kept, before = second.context().messages[1:], first.context().messages[1:]
        assert [one.text for one in kept] == [one.text for one in before]


def brought(store: Store, dialect: Any, source: InMemorySource) -> Session:
    read = dialect.read(source)
    assert not read.damage
    done = import_session(store.port, dialect, read)
    assert done.id is not None
    return store.session(done.id)


def said(session: Session) -> list[tuple[Any, ...]]:
    """All but signatures, which only their own provider takes."""
    return [
        (one.role, one.text, one.tool_call_id, *((c.id, c.name, c.arguments) for c in one.tool_calls))
        for one in session.messages()
    ]
