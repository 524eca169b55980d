"""`config show` and `doctor`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import everlog
from everlog.model import user
from everlog.session import Session
from tests.cli.runner import Cli
from tests.foreign.foreign_directories import crabtalk_file, made
from tests.stores.stored_text import files_with


def write_config(root: Path, text: str) -> Path:
    root.mkdir(mode=0o700, exist_ok=True)
    file = root / "config.toml"
    file.write_text(text)
    return file


def test_config_show_tells_where_each_setting_comes_from(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_config(root, '[session]\ndurability = "os"\npart_bytes = 1000\n')
    monkeypatch.setenv("EVERLOG_SESSION_PART_BYTES", "2000")
    answer = cli("config", "show", "--json").json
    assert answer["home"] == str(root) and answer["file"] == str(file)
    assert answer["settings"]["session"]["durability"] == "os"
    assert answer["settings"]["session"]["part_bytes"] == 2000
    assert answer["origins"]["session.durability"] == "file"
    assert answer["origins"]["session.part_bytes"] == "environment"
    assert answer["origins"]["session.total_bytes"] == "default"
    rows = {row.split()[0]: row for row in cli("config", "show").out.splitlines()}
    assert rows["session.durability"].endswith(str(file))
    assert rows["session.part_bytes"].endswith("EVERLOG_SESSION_PART_BYTES")
    assert rows["session.total_bytes"].endswith("default")


def test_config_show_without_a_root_shows_defaults(cli: Cli, root: Path) -> None:
    answer = cli("config", "show", "--json").json
    assert answer["file"] is None and set(answer["origins"].values()) == {"default"}
    assert not root.exists()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[session]\nfoo = 1\n", "foo"),
        ("[sesion]\n", "sesion"),
        ("session = 1\n", "session"),
        ("[session]\npart_bytes = 'x'\n", "part_bytes"),
        ("[session]\npart_bytes = 0\n", "part_bytes"),
        ("[session]\ndurability = 'maybe'\n", "durability"),
        ("[session\n", ""),
        ("[session]\npart_bytes = 1\npart_bytes = 2\n", ""),
    ],
)
def test_bad_configuration_is_one_line_naming_file_and_key(cli: Cli, root: Path, text: str, key: str) -> None:
    file = write_config(root, text)
    for command in (("config", "show"), ("sessions", "list"), ("sessions", "new")):
        done = cli(*command)
        assert done.code == 1 and done.out == ""
        assert done.err.startswith(f"everlog: {file}: ") and key in done.err
        assert done.err.count("\n") == 1
    assert not (root / "sessions").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EVERLOG_SESSION_PART_BYTES", "many"),
        ("EVERLOG_SESSION_PART_BYTES", "-1"),
        ("EVERLOG_SESSION_NONSENSE", "1"),
        ("EVERLOG_SESSION_DURABILITY", ""),
    ],
)
def test_bad_environment_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    done = cli("config", "show")
    assert done.code == 1 and done.err.count("\n") == 1
    assert variable.removeprefix("EVERLOG_SESSION_").lower() in done.err.lower()


def test_configuration_that_is_no_utf8_is_one_line(cli: Cli, root: Path) -> None:
    write_config(root, "").write_bytes(b"\xff")
    done = cli("config", "show")
    assert done.code == 1 and "config.toml" in done.err and done.err.count("\n") == 1


# --- doctor


def checks(answer: dict[str, list[dict[str, object]]]) -> dict[object, dict[str, object]]:
    return {check["name"]: check for check in answer["checks"]}


def test_doctor_finds_a_sound_root_sound(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("one"))
    session.store.close()
    done = cli("doctor", "--json")
    assert done.code == 0 and done.json["ok"] is True and done.json["home"] == done.json["store"] == str(root)
    found = checks(done.json)
    assert list(found) == ["versions", "home", "settings", "model", "store", "sessions", "index", "leftovers"]
    assert "SQLite 3." in str(found["versions"]["detail"])
    assert str(found["index"]["detail"]).startswith("1 session")
    plain = cli("doctor")
    assert plain.code == 0 and plain.err == "" and "FAIL" not in plain.out


def test_doctor_brings_rows_up_to_date(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("one"))
    session.store.close()
    assert cli("doctor").code == 0
    log = root / "sessions" / session.id / "session.jsonl"
    with log.open("ab") as stream:  # a program that knows nothing of the index
        stream.write(
            b'{"recordType":"message","schemaVersion":1,"seq":2,"role":"user",'
            b'"content":[{"type":"text","text":"two"}],"timestamp":"2026-01-01T00:00:00.000Z"}\n'
        )
    assert "1 read again" in cli("doctor").out
    assert cli("sessions", "list", "--json").json["sessions"][0]["messageCount"] == 2


def test_doctor_without_a_home_says_so_and_makes_none(cli: Cli, root: Path) -> None:
    done = cli("doctor")
    assert done.code == 0 and done.err == "", "nothing is wrong: the first session makes it"
    assert done.out.count(f"{root}: not made yet") == 2
    assert not root.exists()
    assert cli("store", "init").code == 0 and cli("doctor").code == 0
    done = cli("--home", str(root / "nowhere"), "doctor")
    assert done.code == 1 and "there is no directory" in done.out


def test_doctor_reports_about_the_store_that_it_was_asked_for(cli: Cli, root: Path, tmp_path: Path) -> None:
    crab = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file(), "notes.txt": b"mine"})
    found = checks(cli("--store", f"crabtalk:{crab}", "doctor", "--json").json)
    assert str(found["store"]["detail"]).startswith(f"crabtalk:{crab}: 1 session; not a session: notes.txt")
    assert "sessions" not in found and "index" not in found
    assert "in memory" in str(checks(cli("--store", "memory:", "doctor", "--json").json)["store"]["detail"])
    done = cli("--store", str(tmp_path / "nowhere"), "doctor")
    assert done.code == 1 and f"there is no directory {tmp_path}/nowhere" in done.out
    root.mkdir(exist_ok=True)
    write_config(root, f'[[stores]]\nlocation = "cersei:{crab}"\n[[stores]]\nlocation = "{tmp_path}/gone"\n')
    done = cli("doctor", "--json")
    assert done.code == 1
    found = checks(done.json)
    assert str(found["stores 1"]["detail"]).startswith(f"cersei:{crab}: 0 sessions; not a session")
    assert "take it out of [[stores]]" in str(found["stores 2"]["detail"]) and found["store"]["ok"]


def test_doctor_names_what_is_no_session(cli: Cli, root: Path, session: Session) -> None:
    (root / "sessions" / "notes.txt").write_text("mine")
    (root / "sessions" / "01ARZ3NDEKTSV4RRFFQ69G5FAV").symlink_to("/etc")
    done = cli("doctor", "--json")
    assert done.code == 1
    detail = str(checks(done.json)["sessions"]["detail"])
    assert "2 entries in sessions/ that are not session directories" in detail


def test_doctor_finds_open_modes(cli: Cli, root: Path, session: Session) -> None:
    os.chmod(root / "sessions" / session.id, 0o755)
    os.chmod(root, 0o777)
    done = cli("doctor", "--json")
    assert done.code == 1
    found = checks(done.json)
    assert found["home"]["ok"] is False and "0777" in str(found["home"]["detail"])
    assert found["sessions"]["ok"] is False


def test_doctor_tells_bad_settings(cli: Cli, root: Path, session: Session) -> None:
    write_config(root, "[session]\nfoo = 1\n")
    done = cli("doctor", "--json")
    assert done.code == 1 and "foo" in str(checks(done.json)["settings"]["detail"])


def test_doctor_counts_leftovers(cli: Cli, root: Path, session: Session) -> None:
    (root / "trash" / "01ARZ3NDEKTSV4RRFFQ69G5FAV.17").mkdir()
    done = cli("doctor", "--json")
    assert "trash/01ARZ3NDEKTSV4RRFFQ69G5FAV.17" in str(checks(done.json)["leftovers"]["detail"])


def test_doctor_survives_a_garbled_index(cli: Cli, root: Path, session: Session) -> None:
    session.store.close()
    for path in root.glob("index.db*"):
        path.unlink()
    (root / "index.db").write_bytes(b"garbage" * 1000)
    done = cli("doctor", "--json")
    assert done.code == 0 and checks(done.json)["index"]["ok"] is True


def test_doctor_removes_what_is_left_of_sessions_whose_files_are_gone(cli: Cli, root: Path, tmp_path: Path) -> None:
    place = made(tmp_path / "crab", {f"crab_user_{n}.jsonl": crabtalk_file() for n in (1, 2)})
    with everlog.open_store(f"crabtalk:{place}", home=root) as store:
        store.session("crab_user_1").append("qxhidden words")
        store.search("qxhidden")
    (place / "crab_user_1.jsonl").unlink()
    done = cli("--store", f"crabtalk:{place}", "doctor", "--json")
    assert "1 session; removed what was left of 1 deleted session" in str(checks(done.json)["store"]["detail"])
    assert not files_with(root, ["qxhidden"])


def test_pruned_sessions_are_in_no_file_of_the_home(cli: Cli, root: Path) -> None:
    with everlog.open_store(home=root, create=True) as store:
        for words in ("qxhidden words", "qxother words"):
            store.create(sender="me", title=f"about {words}").append(words)
        assert store.search("qxhidden").total == 1
    assert cli("sessions", "prune", "--older-than", "0s", "--yes", "--json").json["deleted"] == 2
    assert not files_with(root, ["qxhidden", "qxother"])
