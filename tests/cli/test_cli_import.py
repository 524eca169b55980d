"""`sessions migrate`, and `sessions new --context`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.session import Store
from tests.cli.runner import Cli

CONTEXT = json.dumps({"channel": "telegram", "chat_type": "direct", "chat_id": "42", "sender_id": "42"})


def _old(folder: Path, key: str = "agent:main:direct:42") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{key.replace(':', '_')}.json"
    document = {"key": key, "messages": [{"role": "user", "content": "hello"}]}
    file.write_text(json.dumps({**document, "created": "2025-03-04T05:06:07Z"}))
    return file


def test_migrate_tells_each_file_and_its_session(cli: Cli, store: Store, tmp_path: Path) -> None:
    file = _old(tmp_path / "old")
    done = cli("sessions", "migrate", str(tmp_path / "old"))
    session = store.session("agent:main:direct:42")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{file.name} → {session.id}, 1 record\n"
    again = cli("sessions", "migrate", str(tmp_path / "old"))
    assert (again.code, again.out) == (0, "")
    assert "no legacy session files" in again.err


def test_migrate_answers_in_json(cli: Cli, tmp_path: Path) -> None:
    file = _old(tmp_path / "old")
    (one,) = cli("sessions", "migrate", str(tmp_path / "old"), "--json").json["files"]
    assert (one["path"], one["recordsIn"], one["recordsOut"]) == (str(file), 1, 1)
    assert one["lost"] == []


def test_migrate_leaves_what_it_cannot_read_and_fails(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    _old(folder)
    (folder / "torn.json").write_text("{")
    done = cli("sessions", "migrate", str(folder))
    assert done.code == 1
    assert done.err.count("\n") == 1 and "torn.json: not JSON" in done.err
    assert "→" in done.out
    assert (folder / "torn.json").read_text() == "{"


def test_migrate_needs_a_directory(cli: Cli, tmp_path: Path) -> None:
    assert cli("sessions", "migrate", str(tmp_path / "none")).code == 2
    assert cli("sessions", "migrate").code == 2


def test_new_for_a_context_is_the_next_chat_there(cli: Cli, store: Store) -> None:
    one = cli("sessions", "new", "--context", CONTEXT, "--json").json
    two = cli("sessions", "new", "--context", CONTEXT, "--title", "T", "--json").json
    assert (one["chat"], two["chat"]) == (1, 2)
    assert one["key"] == two["key"] and one["key"].startswith("sk_v1_")
    assert (two["agent"], two["sender"], two["name"]) == ("main", "42", "T")
    assert two["scope"]["values"] == {"chat": "direct:42"}
    assert store.session("agent:main:telegram:direct:42").id == two["id"]
    routed = cli("route", stdin=f'{{"context": {CONTEXT}}}\n'.encode()).json
    assert routed["session_key"] == one["key"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("--context", "nonsense"), 1),
        (("--context", "[]"), 1),
        (("--context", '{"chanel": "x"}'), 1),
        (("--context", CONTEXT, "--agent", "a"), 2),
        (("--context", CONTEXT, "--key", "sk_v1_x"), 2),
        (("--context", CONTEXT, "--alias", "agent:x"), 2),
    ],
)
def test_a_bad_context_makes_nothing(cli: Cli, root: Path, given: tuple[str, ...], code: int) -> None:
    done = cli("sessions", "new", *given)
    assert done.code == code
    assert done.out == "" and done.err.count("\n") == 1
    assert not (root / "sessions").exists()
