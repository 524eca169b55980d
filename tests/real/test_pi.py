"""The real pi resumes what we appended, compacted, deleted and converted; we read what it writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import everlog
from everlog.errors import UnsupportedError
from everlog.interop.exporter import export
from everlog.interop.formats.format_types import InMemorySource, ListingScan
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.importer import import_session
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.providers.fake_server import FakeServer
from tests.real.pi_cli import PACKAGES, PiCli, install

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("EVERLOG_TEST_REAL" not in os.environ, reason="runs a foreign program: make test-real"),
]


class Desk(NamedTuple):
    """The program with one session, and our store on its files."""

    version: str
    cli: PiCli
    store: everlog.Store

    @property
    def session(self) -> everlog.Session:
        """The only session of the store."""
        (row,) = self.store.list()
        return self.store.session(row.id)

    @property
    def texts(self) -> list[str]:
        """What our store shows of it."""
        return [text_of(message) for message in self.session.messages()]


def text_of(message: Message) -> str:
    return " ".join([message.text, *(call.name for call in message.tool_calls)]).strip()


@pytest.fixture(scope="module", params=PACKAGES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    command = install(request.param, tmp_path_factory.mktemp("pi") / "npm")
    if isinstance(command, str):
        pytest.skip(command)
    return request.param, command


@pytest.fixture
def desk(program: tuple[str, list[str]], tmp_path: Path) -> Iterator[Desk]:
    version, command = program
    with FakeServer() as model:
        cli = PiCli(command, tmp_path / "home", model)
        with open_foreign_store(cli.sessions, tmp_path / "own", pi) as store:
            yield Desk(version, cli, store)


def test_what_we_append_is_sent_and_what_pi_adds_is_read(desk: Desk) -> None:
    desk.cli.run("Which tea?")
    session = desk.session
    assert (session.metadata.title, desk.texts) == ("Which tea?", ["Which tea?", "Answer 1."])
    session.append(user("Is Assam malty?"))
    session.append(assistant([ToolCall("call_1", "read", {"path": "teas.txt"})]))
    session.append(tool_result("call_1", "Assam: malty"))
    session.append(assistant("It is malty."))
    sent = desk.cli.resume("And Darjeeling?")
    expected = ["Which tea?", "Answer 1.", "Is Assam malty?", "read", "Assam: malty", "It is malty.", "And Darjeeling?"]
    assert sent == expected
    assert desk.texts == [*expected, "Answer 2."]
    assert pi.resume_command(ListingScan(), str(desk.cli.file)) == ("pi", "--session", str(desk.cli.file))


@pytest.mark.parametrize("keeps", [True, False])
def test_pi_sends_our_summary_in_place_of_what_it_covers(desk: Desk, keeps: bool) -> None:
    desk.cli.run("Which tea?")
    kept = desk.session.append(user("Is Assam malty?"))
    first = kept.seq if keeps else kept.seq + 1
    desk.session.append(Compaction(first_kept_seq=first, summary="They compared teas."))
    desk.session.append(user("And Ceylon?"))
    sent = desk.cli.resume("And Darjeeling?")
    assert "They compared teas." in sent[0]
    assert sent[1:] == [*["Is Assam malty?"] * keeps, "And Ceylon?", "And Darjeeling?"]
    assert [message.text for message in desk.session.context().messages][1:] == [*sent[1:], "Answer 2."]


def test_a_deletion_is_kept_from_the_model_or_refused(desk: Desk) -> None:
    desk.cli.run("Which tea?")
    deleted = desk.session.append(user("My password is leaf."))
    desk.session.append(user("Forget it."))
    before = desk.cli.file.read_bytes()
    if desk.version == "0.73.1":
        with pytest.raises(UnsupportedError):
            desk.session.tombstone(deleted.seq)
        assert desk.cli.file.read_bytes() == before
        return
    desk.session.tombstone(deleted.seq)
    sent = desk.cli.resume("And Darjeeling?")
    assert sent == ["Which tea?", "Answer 1.", "Forget it.", "And Darjeeling?"]
    assert desk.texts == [*sent, "Answer 2."]


@pytest.mark.parametrize("end", ["no newline", "torn"])
def test_a_file_whose_end_is_damaged_is_continued_by_both(desk: Desk, end: str) -> None:
    desk.cli.run("Which tea?")
    with desk.cli.file.open("r+b") as file:
        file.truncate(desk.cli.file.stat().st_size - (1 if end == "no newline" else 20))
    desk.session.append(user("Is Assam malty?"))
    sent = desk.cli.resume("And Darjeeling?")
    assert sent == ["Which tea?", *["Answer 1."] * (end == "no newline"), "Is Assam malty?", "And Darjeeling?"]
    assert desk.texts == [*sent, "Answer 2."]


def test_history_before_a_missing_parent_is_sent_after_our_append(desk: Desk) -> None:
    desk.cli.run("Which tea?")
    content = [{"type": "text", "text": "Is Assam malty?"}]
    orphan = {
        "type": "message", "id": "0badf00d", "parentId": "deadbeef", "timestamp": "2026-01-01T00:00:00.000Z",
        "message": {"role": "user", "content": content, "timestamp": 1},
    }  # fmt: skip
    with desk.cli.file.open("ab") as file:
        file.write(json.dumps(orphan).encode() + b"\n")
    desk.session.append(user("And Ceylon?"))
    sent = desk.cli.resume("And Darjeeling?")
    assert sent == ["Which tea?", "Answer 1.", "Is Assam malty?", "And Ceylon?", "And Darjeeling?"]
    assert desk.texts == [*sent, "Answer 2."]


def test_a_file_of_version_1_stays_one_session_when_pi_migrates_it(desk: Desk) -> None:
    header = {"type": "session", "id": "tea", "timestamp": "2025-01-01T00:00:00.000Z", "cwd": str(desk.cli.work)}
    times = {"timestamp": "2025-01-01T00:00:01.000Z"}
    said = {"role": "user", "content": [{"type": "text", "text": "Which tea?"}], "timestamp": 1}
    path = desk.cli.sessions / "tea.jsonl"
    lines = [header, {"type": "message", **times, "message": said}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    old = pi.read(InMemorySource(path.stem, {path.name: path.read_bytes()}))
    assert desk.texts == ["Which tea?"]
    assert desk.cli.resume("And Darjeeling?") == ["Which tea?", "And Darjeeling?"]
    assert json.loads(path.read_text().partition("\n")[0])["version"] == 3
    assert desk.texts == ["Which tea?", "And Darjeeling?", "Answer 1."]
    new = pi.read(InMemorySource(path.stem, {path.name: path.read_bytes()}))
    with everlog.open_store("memory:") as store:
        first, again = (import_session(store.port, pi, read) for read in (old, new))
        assert first.id == again.id
        assert [message.text for message in store.session(first.id or "").messages()] == desk.texts


def test_pi_resumes_a_session_of_ours(desk: Desk) -> None:
    with everlog.open_store("memory:") as store:
        session = store.create(title="Teas")
        session.append(user("Which tea?"))
        session.append(assistant([ToolCall("call_1", "read", {"path": "teas.txt"})], model="fake:m"))
        session.append(tool_result("call_1", "Assam: malty"))
        session.append(assistant("Assam.", model="fake:m"))
        ((name, data),) = export(session, pi).files.items()
    (desk.cli.sessions / name).write_bytes(data)
    assert desk.cli.resume("And Darjeeling?") == ["Which tea?", "read", "Assam: malty", "Assam.", "And Darjeeling?"]
    assert desk.session.metadata.title == "Teas"


def test_pi_goes_on_before_what_we_rewound(desk: Desk) -> None:
    with everlog.open_store("memory:") as store:
        session = store.create(title="Teas")
        first = session.append(user("Which tea?"))
        session.append(user("Is Assam malty?"))
        session.rewind(first.seq)
        ((name, data),) = export(session, pi).files.items()
    (desk.cli.sessions / name).write_bytes(data)
    assert desk.texts == ["Which tea?"]
    assert desk.cli.resume("And Darjeeling?") == ["Which tea?", "And Darjeeling?"]
