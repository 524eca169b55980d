"""Compactions of sessions in foreign files, driven by turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import everlog
from everlog.context.tokens import estimate
from everlog.interop.exporter import export
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.format_types import InMemorySource
from everlog.interop.importer import import_session
from everlog.model import Compaction, Message, Usage, assistant, user
from everlog.ports import Request
from everlog.settings import CompactionSettings
from everlog.testing import ScriptedModel
from everlog.testing.foreign_store_suite import open_foreign_store

SETTINGS = CompactionSettings(reserve_tokens=2_000, keep_recent_tokens=12_000, window=30_000)
TURNS = 30
LATER = "2100-01-01T00:00:00.000Z"  # than the messages
WORDS = "one more line about the tests that were fixed today " * 80  # about 1,000 tokens


def reply(request: Request) -> str | Message:
    """An answer with the usage that a provider would report; a summary is short."""
    if request.purpose != "answer":
        return "They fixed the tests."
    size = sum(map(estimate, request.messages))
    return assistant(WORDS, usage=Usage(input_tokens=size, output_tokens=1_000, total_tokens=size + 1_000))


def compactions_of(store: everlog.Store, session: everlog.Session) -> int:
    model = ScriptedModel(*[reply] * 200)
    agent = everlog.Agent(store, model, model="m", settings=SETTINGS)
    for _ in range(TURNS):
        asyncio.run(agent.run(WORDS, session=session))
    return sum(isinstance(record, Compaction) for record in session.records())


def test_thirty_turns_are_compacted_as_often_as_in_a_store_of_our_own(tmp_path: Path) -> None:
    with everlog.open_store("memory:") as store:
        expected = compactions_of(store, store.create())
    (tmp_path / "files").mkdir()
    with open_foreign_store(tmp_path / "files", tmp_path / "home", cersei) as store:
        assert compactions_of(store, store.session("support-42", create=True)) == expected
    assert 2 <= expected <= 3


def test_usage_of_a_message_that_an_exported_summary_keeps_is_not_the_size_of_the_context() -> None:
    with everlog.open_store("memory:") as store:
        session = store.create()
        session.append(user("a question"))
        kept = session.append(assistant("an answer", usage=Usage(total_tokens=100_000)))
        session.append(Compaction(first_kept_seq=kept.seq, summary="They talked.", timestamp=LATER))
        files = export(session, cersei).files
        read = cersei.read(InMemorySource(next(iter(files)).removesuffix(".jsonl"), files))
        back = store.session(import_session(store.port, cersei, read).id or "")
        assert [message.text for message in back.context().messages][1:] == ["an answer"]
        assert back.context().tokens < 1_000
