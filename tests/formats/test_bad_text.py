"""Text that is no Unicode: shown with U+FFFD, named, and given back as it was."""

from __future__ import annotations

import pytest

from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import InMemorySource
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.importer import import_session
from everlog.model import Message
from everlog.session import Store
from everlog.stores.in_memory import InMemoryStore

UUID = "11111111-1111-4111-8111-111111111111"
SESSIONS: dict[str, tuple[ForeignFormat, str, bytes]] = {
    "crabtalk": (
        crabtalk,
        "crab_user_1",
        b'{"agent":"crab","created_by":"user","created_at":"2026-03-01T10:00:00+00:00",'
        b'"title":"","uptime_secs":3}\n{"role":"user","content":"caf%b"}\n',
    ),
    "picoclaw": (picoclaw, "agent_main_main", b'{"role":"user","content":"caf%b"}\n'),
    "cersei": (
        cersei,
        "one",
        b'{"type":"user","uuid":"' + UUID.encode() + b'","timestamp":"2026-03-01T10:00:00+00:00",'
        b'"session_id":"one","cwd":"/","message":{"role":"user","content":"caf%b"},'
        b'"is_sidechain":false}\n',
    ),
    "pi": (
        pi,
        "one",
        b'{"type":"session","version":3,"id":"one","timestamp":"2026-03-01T10:00:00.000Z",'
        b'"cwd":"/"}\n{"type":"message","id":"aaaaaaaa","parentId":null,'
        b'"timestamp":"2026-03-01T10:00:00.000Z",'
        b'"message":{"role":"user","content":[{"type":"text","text":"caf%b"}]}}\n',
    ),
}


@pytest.mark.parametrize("bad", [b"\xe9", b"\\ud83d"], ids=["latin-1", "half a surrogate"])
@pytest.mark.parametrize("name", SESSIONS)
def test_it_is_shown_named_and_given_back(name: str, bad: bytes) -> None:
    dialect, stem, lines = SESSIONS[name]
    data = lines.replace(b"%b", bad)
    path = f"{stem}.jsonl"
    read = dialect.read(InMemorySource(stem, {path: data}))
    said = [item.text for item in read.items if isinstance(item, Message)]
    assert len(said) == 1 and said[0].startswith("caf\ufffd")
    assert any(one.path == path for one in read.damage)
    store = Store(InMemoryStore())
    session = store.session(import_session(store.port, dialect, read).id or "")
    written = dialect.write(session.metadata, session.records())
    assert written.files[next(iter(written.files))] == data
