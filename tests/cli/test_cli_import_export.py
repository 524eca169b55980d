"""`everlog import` and `everlog export`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from everlog.session import Store
from tests.cli.runner import Cli, run_on_terminal
from tests.test_spec_003 import DOCUMENT, ULID

CRAB = (
    b'{"agent":"crab","created_by":"user","created_at":"2026-03-01T10:00:00+00:00","title":"",'
    b'"uptime_secs":3}\n'
    b'{"role":"user","content":"hello, my key is ghp_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2"}\n'
    b'{"role":"assistant","content":"hi"}\n'
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "crabtalk"
    folder.mkdir()
    (folder / "crab_user_1.jsonl").write_bytes(CRAB)
    return folder


def test_a_folder_is_imported_once_and_the_source_stays(cli: Cli, source: Path) -> None:
    done = cli("import", str(source), "--json")
    (one,) = done.json["files"]
    assert (one["format"], one["recordsIn"], one["lost"]) == ("crabtalk", 3, 0)
    assert (one["stored"], one["alreadyThere"]) == (3, 0)
    assert (source / "crab_user_1.jsonl").read_bytes() == CRAB
    again = cli("import", str(source), "--json").json["files"][0]
    assert (again["id"], again["stored"], again["alreadyThere"]) == (one["id"], 0, 3)
    assert "hello" in cli("sessions", "show", one["id"]).out
    said = cli("import", str(source)).out
    assert said == f"crab_user_1.jsonl → {one['id']}, crabtalk: 2 messages, none new\n", "as a listing counts them"


def test_two_conversations_with_one_name_are_two_sessions_and_the_report_says_so(cli: Cli, source: Path) -> None:
    other = source / "copy" / "crab_user_1.jsonl"
    other.parent.mkdir()
    other.write_bytes(CRAB.replace(b"hello", b"goodbye"))
    done = cli("import", str(source))
    assert done.code == 0 and len(set(re.findall(r"→ (\S+),", done.out))) == 2
    assert "goes another way than" in done.err


def test_other_files_in_a_folder_are_named_and_are_no_failure(cli: Cli, source: Path) -> None:
    (source / "notes.txt").write_text("to do\n")
    done = cli("import", str(source))
    assert done.code == 0 and "notes.txt: not a session" in done.err
    (skipped,) = cli("import", str(source), "--json").json["skipped"]
    assert skipped["path"].endswith("notes.txt") and "JSON" in skipped["reason"]


def test_files_that_are_none_are_named_and_the_others_come_in(cli: Cli, source: Path) -> None:
    (source / "what.jsonl").write_text("nonsense\n")
    done = cli("import", str(source))
    assert done.code == 1 and "crab_user_1.jsonl → " in done.out
    assert done.err.count("\n") == 1 and "what.jsonl" in done.err
    assert cli("import", str(source), "--format", "pi").code == 1


def test_a_session_goes_back_byte_for_byte(cli: Cli, source: Path, tmp_path: Path) -> None:
    session = cli("import", str(source), "--json").json["files"][0]["id"]
    out = tmp_path / "out"
    done = cli("export", session, "--format", "crabtalk", "-o", str(out), "--json")
    (file,) = done.json["files"]
    assert Path(file).read_bytes() == CRAB and Path(file).stat().st_mode & 0o777 == 0o600
    again = cli("export", session, "--format", "crabtalk", "-o", str(out))
    assert again.code == 1 and "already exists" in again.err
    cli("sessions", "append", session, "one more")
    other = tmp_path / "other"
    cli("export", session, "--format", "crabtalk", "-o", str(other))
    (grown,) = other.iterdir()
    assert grown.read_bytes() == CRAB + b'{"role":"user","content":"one more"}\n'


@pytest.mark.parametrize("name", ["native", "ulid", "claude", "cersei", "picoclaw", "pi", "json"])
def test_any_session_can_be_written_in_any_format(cli: Cli, source: Path, tmp_path: Path, name: str) -> None:
    session = cli("import", str(source), "--json").json["files"][0]["id"]
    done = cli("export", session, "--format", name, "-o", str(tmp_path / "o"), "--json")
    assert done.code == 0, done.err
    text = Path(done.json["files"][0]).read_text()
    assert "hello, my key" in text
    if name not in ("native", "json", "ulid"):
        back = cli("import", str(tmp_path / "o"), "--json").json["files"][0]
        assert back["format"] == name and back["lost"] == 0
        shown = json.loads(cli("sessions", "show", back["id"], "--json").out)["messages"]
        assert [one["role"] for one in shown] == ["user", "assistant"]


def test_pages_cover_secrets_up_and_say_so(cli: Cli, source: Path, tmp_path: Path) -> None:
    session = cli("import", str(source), "--json").json["files"][0]["id"]
    for name in ("md", "html"):
        done = cli("export", session, "--format", name, "-o", str(tmp_path))
        assert "1 secret redacted" in done.err
        assert "ghp_" not in (tmp_path / f"{session}.{name}").read_text()
    keep = ("--no-redact", "-o", str(tmp_path / "kept"))
    assert cli("export", session, "--format", "md", *keep).err == ""
    assert "ghp_" in (tmp_path / "kept" / f"{session}.md").read_text()


def test_what_a_file_is_called_reaches_no_terminal_unchecked(root: Path, tmp_path: Path) -> None:
    (tmp_path / "x\x1b[31m.jsonl").write_bytes(b"nonsense\n")
    done = run_on_terminal(root, "import", str(tmp_path))
    assert done.code == 1 and "\x1b[31m" not in done.out


def test_sessions_of_our_own_layout_come_in_with_a_word_on_their_settings(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / ".agent" / "sessions" / ULID
    folder.mkdir(parents=True)
    (folder / "session.jsonl").write_bytes(DOCUMENT)
    (folder / "metadata.json").write_text(json.dumps({"id": ULID, "name": "Disks"}))
    (tmp_path / ".agent" / "config.yaml").write_text("compaction:\n  reserve_tokens: 9000\n")
    done = cli("import", str(tmp_path / ".agent" / "sessions"))
    assert (done.code, done.out) == (0, f"{ULID} → {ULID}, ulid: 4 messages, all new\n")
    assert "compaction.reserve_tokens: 9000 of config.yaml is not taken over" in done.err
    assert "`reserve_tokens = 9000` below [compaction]" in done.err and done.err.count("\n") == 1
    assert cli("sessions", "import", str(tmp_path / ".agent"), "--json").json["files"][0]["newMessages"] == 0


def test_legacy_files_come_in_and_stay_and_those_that_are_torn_are_named(
    cli: Cli, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    messages = [{"role": "user", "content": "hello"}]
    document = {"key": "agent:main:direct:42", "messages": messages, "created": "2025-03-04T05:06:07Z"}
    (folder / "agent_main_direct_42.json").write_text(json.dumps(document))
    (folder / "torn.json").write_text("{")
    done = cli("import", str(folder))
    session = store.session("agent:main:direct:42")
    assert done.out == f"agent_main_direct_42.json → {session.id}, picoclaw: 1 message, all new\n"
    assert done.code == 1 and done.err.count("\n") == 1 and "torn.json: not JSON" in done.err
    assert sorted(file.name for file in folder.iterdir()) == ["agent_main_direct_42.json", "torn.json"]
    assert cli("sessions", "migrate", str(folder)).code == 2


def test_the_id_in_its_program_finds_an_imported_session(cli: Cli, tmp_path: Path) -> None:
    program_id = "258c72ab-3f1c-4d0b-9a52-0c8f6a3b1dff"
    line = {"type": "session", "version": 3, "id": program_id, "timestamp": "2026-03-01T10:00:00.000Z", "cwd": "/w"}
    message = {"role": "user", "content": "which zone?", "timestamp": 1772359200000}
    entry = {"type": "message", "id": "a1b2c3d4", "parentId": None, "timestamp": line["timestamp"], "message": message}
    (tmp_path / "s.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(entry)}\n")
    session = cli("import", str(tmp_path / "s.jsonl"), "--json").json["files"][0]["id"]
    for name in (program_id, "258c72", f"pi:{program_id}"):
        assert "which zone?" in cli("sessions", "show", name).out
    exported = cli("export", "258c72", "--format", "pi", "-o", str(tmp_path / "o"), "--json").json
    assert exported["lost"] == []
    assert session
