"""`everlog route`, and what `config show` tells of its settings."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import Cli, Result, environment, run_on_terminal, run_process

GOLDEN = Path(__file__).parents[1] / "golden" / "identity_vectors.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
FORUM = {"channel": "telegram", "chat_id": "-1", "chat_type": "group", "topic_id": "42"}
KEYS = ["agent", "matched_by", "scope", "signature", "session_key", "aliases", "main_key"]

CONFIG = """
[session]
dimensions = ["sender"]
[session.identity_links]
Alice = ["telegram:7", "slack:U7"]
[agents.main]
[agents.sales]
default = true
[[dispatch.rules]]
name = "Loud"
agent = "main"
when = { channel = "telegram", mentioned = true }
session_dimensions = ["chat"]
"""


def write_config(root: Path, text: str) -> Path:
    root.mkdir(mode=0o700, exist_ok=True)
    file = root / "config.toml"
    file.write_text(text)
    return file


def rows(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def answers(done: Result) -> list[dict[str, Any]]:
    assert done.code == 0 and done.err == ""
    return [json.loads(row) for row in done.out.split("\n")[:-1]]


def test_every_line_gets_its_answer_in_one_line(cli: Cli, root: Path) -> None:
    done = cli("route", stdin=rows(*(case["line"] for case in CASES)))
    found = answers(done)
    assert found == [case["answer"] for case in CASES]
    assert [list(one) for one in found] == [[*KEYS, "main_aliases"]] * len(CASES)
    assert done.out.startswith('{"agent":"main","matched_by":"default","scope":{"version":1,')
    assert cli("route", "--json", stdin=rows(CASES[0]["line"])).json == CASES[0]["answer"]
    assert not root.exists()


def test_what_a_line_does_not_give_is_the_configurations(cli: Cli, root: Path) -> None:
    write_config(root, CONFIG)
    context = {**FORUM, "sender_id": "7"}
    lines: list[dict[str, Any]] = [
        {"context": context},
        {"context": {**context, "mentioned": True}},
        {"context": context, "dimensions": ["chat"]},
        {"context": context, "dimensions": []},
        {"context": context, "identity_links": {}},
        {"context": context, "agents": []},
        {"context": context, "agents": [{"id": "x"}]},
        {"context": {**context, "mentioned": True}, "rules": []},
        {"context": context, "rules": [{"when": {"sender": "alice"}, "agent": "main"}]},
        {"context": context, "session_key": "agent:x:y"},
    ]
    found = answers(cli("route", stdin=rows(*lines)))
    assert [(one["agent"], one["matched_by"], one["scope"]["values"]) for one in found] == [
        ("sales", "default", {"sender": "alice"}),
        ("main", "dispatch.rule:loud", {"chat": "group:-1/42"}),
        ("sales", "default", {"chat": "group:-1/42"}),
        ("sales", "default", None),
        ("sales", "default", {"sender": "7"}),
        ("main", "default", {"sender": "alice"}),
        ("x", "default", {"sender": "alice"}),
        ("sales", "default", {"sender": "alice"}),
        ("main", "dispatch.rule", {"sender": "alice"}),
        ("sales", "default", {"sender": "alice"}),
    ]
    assert [one["session_key"] for one in found][-1] == "agent:x:y"
    assert sorted(os.listdir(root)) == ["config.toml"]


def test_null_counts_as_not_given(cli: Cli) -> None:
    bare = rows({"context": FORUM})
    nulls: dict[str, Any] = dict.fromkeys(("dimensions", "identity_links", "agents", "rules"))
    line = {**nulls, "session_key": None, "context": {**FORUM, "space_id": None, "mentioned": None}}
    assert cli("route", stdin=rows(line)) == cli("route", stdin=bare)
    rule = {"name": None, "agent": None, "when": None, "session_dimensions": None}
    assert cli("route", stdin=rows({**line, "rules": [rule]})) == cli("route", stdin=bare)


@pytest.mark.parametrize("stdin", [b"", b"\n \r\n\t\n"])
def test_no_lines_no_answers(cli: Cli, stdin: bytes) -> None:
    assert cli("route", stdin=stdin) == (0, "", "")


def test_blank_lines_crlf_and_a_byte_order_mark_are_passed_over(cli: Cli) -> None:
    bare = rows({"context": FORUM})
    odd = b"\xef\xbb\xbf" + bare.replace(b"\n", b"\r\n") + b"\r\n\n" + bare.rstrip()
    assert cli("route", stdin=odd).out == cli("route", stdin=bare + bare).out


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b"hello", "JSON is malformed"),
        (b"{", "truncated"),
        (b'{"context": {}} {}', "trailing characters"),
        (b"null", "object"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"{}", "context"),
        (b'{"context": null}', "context"),
        (b'{"context": "x"}', "context"),
        (b'{"context": {"chat_id": 42}}', "context.chat_id"),
        (b'{"context": {"mentioned": "yes"}}', "context.mentioned"),
        (b'{"context": {"chanel": "x"}}', "chanel"),
        (b'{"context": {}, "sessionKey": "x"}', "sessionKey"),
        (b'{"context": {}, "session_key": 1}', "session_key"),
        (b'{"context": {}, "dimensions": "chat"}', "dimensions"),
        (b'{"context": {}, "dimensions": [null]}', "dimensions[0]"),
        (b'{"context": {}, "identity_links": []}', "identity_links"),
        (b'{"context": {}, "identity_links": {"a": "x"}}', "identity_links"),
        (b'{"context": {}, "identity_links": {"a": ["x"], "b": ["X"]}}', "'a' and 'b'"),
        (b'{"context": {}, "agents": {}}', "agents"),
        (b'{"context": {}, "agents": ["x"]}', "agents[0]"),
        (b'{"context": {}, "agents": [{"id": 1}]}', "agents[0].id"),
        (b'{"context": {}, "rules": [{"when": {"chanel": "x"}}]}', "chanel"),
        (b'{"context": {}, "rules": [{"when": {"mentioned": 1}}]}', "rules[0].when.mentioned"),
        (b'{"context": {}, "rules": [{"session_dimensions": "chat"}]}', "session_dimensions"),
        (b'{"context": {"chat_id": "\\ud800"}}', ""),
        (b'{"context": {"chat_id": "\xff"}}', "utf-8"),
        (b'{"context": ' + b"[" * 100_000, "nested too deeply"),
        (b"\x00", "malformed"),
    ],
)
def test_a_bad_line_is_one_error_that_names_line_and_field(cli: Cli, root: Path, line: bytes, names: str) -> None:
    good = rows({"context": FORUM})
    for option in ((), ("--explain",)):
        done = cli("route", *option, stdin=good + b"\n" + line + b"\n" + good)
        assert done.code == 1 and done.out.count("\n") == 1
        assert done.err.startswith("everlog: line 3: ") and done.err.count("\n") == 1
        assert names in done.err
    assert not root.exists()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[[dispatch.rules]]\nwhen = { chanel = 'x' }\n", "chanel"),
        ("[session]\ndimensions = ['chats']\n", "chats"),
        ("[session.identity_links]\na = ['x']\nb = ['X']\n", "'a' and 'b'"),
        ("[agents.x]\nnick = 1\n", "nick"),
    ],
)
def test_bad_configuration_is_one_line_and_nothing_is_answered_or_written(
    cli: Cli, root: Path, text: str, names: str
) -> None:
    file = write_config(root, text)
    for command in (("route",), ("config", "show"), ("sessions", "new")):
        done = cli(*command, stdin=rows({"context": {}}))
        assert done.code == 1 and done.out == ""
        assert done.err.startswith(f"everlog: {file}: ") and done.err.count("\n") == 1
        assert names in done.err
    assert sorted(os.listdir(root)) == ["config.toml"]


def test_an_argument_is_wrong_usage(cli: Cli) -> None:
    done = cli("route", "telegram")
    assert done.code == 2 and done.err.count("\n") == 1


# --- explain


def test_explain_is_a_paragraph_a_line(cli: Cli, root: Path) -> None:
    write_config(root, CONFIG)
    loud = {"context": {**FORUM, "sender_id": "7", "mentioned": True}}
    quiet = {"context": {**FORUM, "channel": "Slack", "sender_id": "U7"}}
    done = cli("route", "--explain", stdin=rows(loud, quiet))
    first, second, rest = done.out.split("\n")
    assert (done.code, done.err, rest) == (0, "", "")
    assert "rule 1 'Loud' is the first that matches: channel is telegram, mentioned is true" in first
    assert "Telegram forum" in first and "alice" in first
    assert "No dispatch rule matches, so the message goes to the default agent sales (marked as default)" in second
    assert "compared in lower case: channel Slack as slack, sender_id U7 as u7" in second
    keys = [one["session_key"] for one in answers(cli("route", stdin=rows(loud, quiet)))]
    assert first.endswith(keys[0]) and second.endswith(keys[1])


def test_explain_with_json_adds_the_words_to_the_answer(cli: Cli) -> None:
    line = rows({"context": FORUM})
    plain, told = (cli("route", stdin=line).json, cli("route", "--explain", "--json", stdin=line).json)
    why = told.pop("why")
    assert told == plain and list(told) == list(plain)
    assert any("Telegram forum" in sentence for sentence in why)


def test_no_control_character_of_an_id_reaches_the_output(cli: Cli) -> None:
    line = rows({"context": {**FORUM, "chat_id": "\x1b[31m\x9b2J\u202e\n|="}, "session_key": "\x07"})
    for option in ((), ("--explain",)):
        done = cli("route", *option, stdin=line)
        assert done.code == 0 and done.out.count("\n") == 1
        assert not set(done.out) & set("\x1b\x9b\u202e\x07")


# --- as a process


def test_each_answer_is_there_before_the_next_line_is_asked(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "everlog", "route"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(root)
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(3):
            process.stdin.write(rows({"context": FORUM}))
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 60)[0]
            assert json.loads(process.stdout.readline())["agent"] == "main"
        process.stdin.close()
        assert process.wait(60) == 0


def test_many_lines_are_no_trouble(root: Path) -> None:
    lines = rows(*({"context": {**FORUM, "topic_id": str(one)}} for one in range(5000)))
    done = run_process(root, "route", stdin=lines)
    assert len({one["session_key"] for one in answers(done)}) == 5000


def test_on_a_terminal_it_says_what_it_waits_for(root: Path) -> None:
    done = run_on_terminal(root, "route", "--explain", typed=rows({"context": FORUM}) + b"\x04")
    assert done.code == 0
    assert "then Ctrl-D" in done.out and "No dispatch rules are configured" in done.out


# --- config show


def test_config_show_shows_all_of_it_and_whence(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_config(root, CONFIG)
    answer = cli("config", "show", "--json").json
    session, origins = answer["settings"]["session"], answer["origins"]
    assert session["dimensions"] == ["sender"] and session["dm_scope"] is None
    assert session["identity_links"] == {"Alice": ["telegram:7", "slack:U7"]}
    assert answer["settings"]["dispatch"]["rules"][0]["when"] == {"channel": "telegram", "mentioned": True}
    assert answer["settings"]["agents"]["sales"]["default"] is True
    assert origins["session.identity_links.Alice"] == origins["dispatch.rules"] == "file"
    assert origins["agents.sales.default"] == "file" and origins["session.dm_scope"] == "default"
    monkeypatch.setenv("EVERLOG_SESSION_IDENTITY_LINKS", '{"bob":["x"]}')
    monkeypatch.setenv("EVERLOG_DISPATCH_RULES", "[]")
    table = {row.split()[0]: row for row in cli("config", "show").out.splitlines()}
    assert table["session.dimensions"].endswith(str(file))
    assert table["session.identity_links.bob"].endswith("EVERLOG_SESSION_IDENTITY_LINKS")
    assert table["dispatch.rules"].endswith("EVERLOG_DISPATCH_RULES")
    assert "session.identity_links.Alice" not in table
