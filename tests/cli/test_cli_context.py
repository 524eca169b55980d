"""`sessions context` and `compact`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click
import pytest

from everlog.cli.sessions_context import compact
from everlog.context.tokens import choose_window, estimate
from everlog.model import Compaction, Message, Text, Thinking, ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from everlog.settings import Strategy
from tests.agent.test_turn import SUMMARY
from tests.cli.runner import Cli, run_on_terminal, run_process
from tests.providers.fake_server import FakeServer, chat

STORY = "and so it went on, word after word, until nobody knew how it had begun. "
ESCAPES = "\x1b[31mred\x1b]0;owned\x07 \x9b2J \x7f \u202e drow"
SMALL = "[compaction]\nkeep_recent_tokens = 1024\n"


def write_config(root: Path, text: str) -> None:
    root.mkdir(mode=0o700, exist_ok=True)
    (root / "config.toml").write_text(text)


def files_of(root: Path, session: Session) -> dict[str, bytes]:
    """Everything that a session has on the disk, but for what is derived."""
    folder = root / "sessions" / session.id
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "metadata.json"}


def talk(session: Session, rounds: int = 6, words: int = 40) -> None:
    """Some rounds with a file changed in each; about 800 tokens a round."""
    for number in range(rounds):
        session.append(user(f"Please mend file number {number}. " + STORY * 3))
        edit = ToolCall(f"tc_{number}", "edit", {"path": f"src/part{number}.py", "new": "x"})
        session.append(assistant([Text("I'll change it."), edit]))
        session.append(tool_result(f"tc_{number}", "done " + STORY * words))
        session.append(assistant(f"File number {number} is mended."))


@pytest.fixture
def long(root: Path, session: Session) -> Session:
    """A session that has more than is kept, under settings that keep little."""
    write_config(root, SMALL)
    talk(session)
    return session


# --- context


def test_context_shows_every_message_with_its_estimate(cli: Cli, session: Session) -> None:
    session.append(user("fix the tests"))
    call = ToolCall("tc_1", "read_file", {"path": "a.py"})
    session.append(assistant([Thinking("where to begin"), Text("I'll look."), call]))
    session.append(tool_result("tc_1", "\n".join(f"line {number}" for number in range(50))))
    session.append(assistant("\n".join(f"point {number}" for number in range(30))))
    done = cli("sessions", "context", session.id)
    assert done.code == 0 and done.err == "" and "\x1b" not in done.out
    rows = done.out.splitlines()
    tokens = session.context().tokens
    assert rows[0] == f"Fix the tests · {session.id} · main with user"
    assert rows[1] == f"{tokens:,} of 200,000 tokens (under 1 %) · 4 messages"
    sizes = [estimate(message) for message in session.messages()]
    assert f"#1 user · {sizes[0]} tokens" in rows
    assert f"#2 assistant · {sizes[1]} tokens" in rows
    assert f"#3 tool result of read_file · {sizes[2]} tokens" in rows
    assert "  fix the tests" in rows and "  ~ where to begin" in rows
    assert '  → read_file {"path":"a.py"}' in rows
    assert "    line 5" in rows and "    line 6" not in rows
    assert "  point 11" in rows and "  point 12" not in rows
    assert done.out.count("more characters") == 2
    full = cli("sessions", "context", session.id, "--full").out
    assert "    line 49" in full and "  point 29" in full and "more characters" not in full


def test_context_answers_messages_as_show_does(cli: Cli, session: Session) -> None:
    session.append(user([Text("one"), Text("x"), {"type": "hologram", "rays": 7}]))
    session.append(assistant("two"))
    answer = cli("sessions", "context", session.id, "--json").json
    assert set(answer) == {"messages", "estimates", "tokens", "window", "leftOut"}
    shown = cli("sessions", "show", session.id, "--json").json["messages"]
    assert answer["messages"] == shown and "crc" not in shown[0]
    assert answer["estimates"] == [estimate(message) for message in session.messages()]
    assert answer["tokens"] == sum(answer["estimates"])
    assert answer["window"] == 200_000 and answer["leftOut"] == []


def test_context_of_an_empty_session(cli: Cli, session: Session) -> None:
    done = cli("sessions", "context", session.id)
    assert done.code == 0 and "0 of 200,000 tokens (0 %) · 0 messages" in done.out
    answer = cli("sessions", "context", session.id, "--json").json
    assert answer["messages"] == [] and answer["tokens"] == 0


@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4", "a-model-nobody-knows"])
def test_the_window_is_that_of_the_model(cli: Cli, store: Store, model: str) -> None:
    session = store.create(model=model)
    assert cli("sessions", "context", session.id, "--json").json["window"] == choose_window(model)
    assert model in cli("sessions", "context", session.id).out.splitlines()[1]


def test_the_window_is_the_option_else_the_agents_setting_else_that_of_all(
    cli: Cli, root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(root, "[compaction]\nwindow = 5000\n[agents.coder.compaction]\nwindow = 7000\n")
    one, other = store.create(model="gpt-4o"), store.create(agent="coder")

    def window(session: Session, *options: str) -> Any:
        return cli("sessions", "context", session.id, "--json", *options).json["window"]

    assert window(one) == 5000 and window(other) == 7000
    assert window(other, "--window", "300") == 300
    monkeypatch.setenv("EVERLOG_COMPACTION_WINDOW", "6000")
    assert window(one) == 6000 and window(other) == 7000


def test_the_window_that_is_set_for_a_provider_is_that_of_its_models(cli: Cli, root: Path, store: Store) -> None:
    there = "[provider.there]\nwindow = 5000\n[provider.elsewhere]\nwindow = 7000\n"
    write_config(root, f'[turn]\nmodel = "there:m"\n{there}')
    agents, chosen = store.create(), store.create(model="elsewhere:m")
    answered = store.create()
    answered.append(user("hello"))
    answered.append(assistant("hm", model="gpt-4"))

    def window(session: Session) -> Any:
        return cli("sessions", "context", session.id, "--json").json["window"]

    assert window(agents) == 5000 and window(chosen) == 7000
    assert window(answered) == 5000, "of who would answer now"


def test_an_orphan_call_is_answered_in_its_place_and_the_log_stays_as_it_is(
    cli: Cli, root: Path, session: Session
) -> None:
    session.append(user("look"))
    session.append(assistant([ToolCall("c1", "bash", {}), ToolCall("c2", "read_file", {})]))
    session.append(user("are you there?"))
    session.append(tool_result("c2", "seen"))
    before = files_of(root, session)
    heads = [
        row.partition(" · ")[0] for row in cli("sessions", "context", session.id).out.splitlines()[2:] if " · " in row
    ]
    assert heads == [
        "#1 user",
        "#2 assistant",
        "#4 tool result of read_file",
        "not recorded: tool result of bash (failed)",
        "#3 user",
    ]
    messages = cli("sessions", "context", session.id, "--json").json["messages"]
    assert [one.get("seq") for one in messages] == [1, 2, 4, None, 3]
    made = messages[3]
    assert (made["role"], made["toolCallId"], made["isError"]) == ("toolResult", "c1", True)
    assert not any(key.startswith("\x7f") for key in made)
    with session.lease():  # a reader needs none
        assert cli("sessions", "context", session.id).code == 0
    assert files_of(root, session) == before | {"turn.lock": b""}


def test_context_tells_what_is_left_out_and_why(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("one"))
    session.append(tool_result("nobody", "a result of nothing"))
    session.append(user("two"))
    session.store.close()
    log = root / "sessions" / session.id / "session.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"two"', b'"tvo"'))
    answer = cli("sessions", "context", session.id, "--json").json
    assert [one["seq"] for one in answer["leftOut"]][1:] == [2]
    assert all(set(one) == {"seq", "why"} for one in answer["leftOut"])
    out = cli("sessions", "context", session.id).out
    assert "· 1 message · 2 left out\n" in out
    tail = out.split("\nleft out\n")[1].splitlines()
    assert tail[0].endswith("damaged: crc does not match")
    assert tail[1:] == ["  #2: a result without its call (nobody)"]


def test_rounds_that_do_not_fit_are_named(cli: Cli, root: Path, session: Session) -> None:
    talk(session)
    before = files_of(root, session)
    answer = cli("sessions", "context", session.id, "--json", "--window", "2000").json
    assert answer["window"] == 2000 and 0 < answer["tokens"] <= 2000
    gone = [one["seq"] for one in answer["leftOut"]]
    assert gone == list(range(1, gone[-1] + 1)) and gone[-1] < 24
    assert answer["messages"][0]["autoInjected"] is True and "seq" not in answer["messages"][0]
    assert [one["seq"] for one in answer["messages"][1:]] == list(range(gone[-1] + 1, 25))
    out = cli("sessions", "context", session.id, "--window", "2000").out
    assert f"injected: user · {answer['estimates'][0]} tokens" in out
    assert f"{len(gone)} messages from #1 to #{gone[-1]}: the context would not fit" in out
    assert files_of(root, session) == before


def test_a_round_that_is_larger_than_the_window_is_one_line_and_exit_1(cli: Cli, session: Session) -> None:
    session.append(user(STORY * 100))
    for options in ((), ("--json",), ("--full",)):
        done = cli("sessions", "context", session.id, "--window", "500", *options)
        assert done.code == 1 and done.out == ""
        assert done.err.startswith("everlog: ") and done.err.count("\n") == 1
        assert "window" in done.err


def test_long_tool_results_are_shortened_by_the_agents_budget(cli: Cli, root: Path, store: Store) -> None:
    session = store.create(agent="coder")
    talk(session, rounds=4)
    write_config(root, "[agents.coder.compaction]\ntool_result_budget = 3000\n")
    whole = cli("sessions", "context", session.id, "--json").json
    short = cli("sessions", "context", session.id, "--json", "--window", "3600").json
    assert whole["leftOut"] == [] and [item["seq"] for item in short["leftOut"]][:1] == [3]
    assert short["tokens"] < whole["tokens"]
    assert [one["seq"] for one in short["messages"]] == [one["seq"] for one in whole["messages"]]
    first = short["messages"][2]
    assert list(first)[:3] == ["recordType", "schemaVersion", "seq"] and "crc" not in first
    assert "more characters; record 3 of this session has" in first["content"][0]["text"]
    assert session.messages()[2].text.endswith(STORY)


def test_context_shows_the_summary_and_that_it_is_stale(cli: Cli, session: Session) -> None:
    for text in ("one", "two", "three"):
        session.append(user(text))
    session.append(Compaction(first_kept_seq=3, summary="They counted."))
    out = cli("sessions", "context", session.id).out
    assert "summary: user · " in out and "  They counted.\n" in out and "stale" not in out
    answer = cli("sessions", "context", session.id, "--json").json
    assert "stale" not in answer and [one.get("seq") for one in answer["messages"]] == [None, 3]
    session.tombstone(1)
    assert cli("sessions", "context", session.id, "--json").json["stale"] == [1]
    out = cli("sessions", "context", session.id).out
    assert "· the summary is stale\n" in out
    assert "\nstale\n  #1: deleted or restored after the summary was written\n" in out


def test_context_is_drawn_for_a_terminal(root: Path, session: Session) -> None:
    session.append(user(f"{ESCAPES} and 会議"))
    session.append(assistant([ToolCall("c", f"tool{ESCAPES}", {"a": ESCAPES})]))
    session.append(Compaction(first_kept_seq=1, summary=ESCAPES))
    assert "\x1b[" in run_on_terminal(root, "sessions", "context", session.id).out
    dangerous = set("\x1b\x07\x9b\x7f\u202e\r")
    for options in ((), ("--full",), ("--json",)):
        drawn = run_on_terminal(root, "sessions", "context", session.id, *options, NO_COLOR="1")
        assert drawn.code == 0 and not set(drawn.out) & dangerous
        piped = run_process(root, "sessions", "context", session.id, *options)
        assert piped.code == 0 and not set(piped.out) & dangerous
    assert "会議" in piped.out


# --- compact


def test_compact_makes_the_context_smaller_and_loses_nothing(cli: Cli, root: Path, long: Session) -> None:
    before = files_of(root, long)["session.jsonl"]
    messages = long.messages()
    was = long.context().tokens
    done = cli("sessions", "compact", long.id)
    assert done.code == 0 and done.err == ""
    now = long.context().tokens
    record = long.records()[-1]
    assert isinstance(record, Compaction) and record.strategy == "structured"
    covered = sum(message.seq < record.first_kept_seq for message in messages)
    rows = done.out.splitlines()
    assert rows[0] == (f"compacted {covered} messages into a structured summary: {was:,} → {now:,} tokens")
    assert now < was / 2
    assert rows[1].endswith(f" tokens summarised; messages from #{record.first_kept_seq} on are kept in full")
    assert rows[2].startswith("modified: src/part0.py, src/part1.py, ")
    assert "  ## Goal" in rows and f"  {record.summary.splitlines()[-1]}" in rows
    assert files_of(root, long)["session.jsonl"].startswith(before)
    assert long.messages() == messages


def test_compact_with_the_settings_that_nobody_changed(cli: Cli, session: Session) -> None:
    talk(session, rounds=8, words=350)
    was = cli("sessions", "context", session.id, "--json").json
    answer = cli("sessions", "compact", session.id, "--json").json
    assert answer["compacted"] is True
    now = cli("sessions", "context", session.id, "--json").json
    assert len(now["messages"]) < len(was["messages"]) and now["tokens"] < was["tokens"]


def test_compact_answers_the_record_as_it_is_stored(cli: Cli, root: Path, long: Session) -> None:
    answer = cli("sessions", "compact", long.id, "--json").json
    assert set(answer) == {"compacted", "record", "tokensFreed"}
    assert answer["compacted"] is True and answer["tokensFreed"] > 1000
    line = json.loads(files_of(root, long)["session.jsonl"].splitlines()[-1])
    del line["crc"]
    assert answer["record"] == line and line["recordType"] == "compaction"
    assert line["modifiedFiles"][0] == "src/part0.py" and line["tokensBefore"] > 1000


def test_a_dry_run_writes_nothing_and_shows_what_would_be_recorded(cli: Cli, root: Path, long: Session) -> None:
    before = files_of(root, long)
    shown = cli("sessions", "compact", long.id, "--dry-run")
    assert shown.code == 0 and shown.out.startswith("would compact ") and "## Goal" in shown.out
    with long.lease():  # it needs none
        answer = cli("sessions", "compact", long.id, "--dry-run", "--json").json
    assert set(answer) == {"compacted", "reason", "record", "tokensFreed"}
    assert answer["compacted"] is False and answer["reason"] == "dry run"
    assert "seq" not in answer["record"]
    assert files_of(root, long) == before | {"turn.lock": b""}
    done = cli("sessions", "compact", long.id)
    assert done.out.replace("compacted", "would compact", 1) == shown.out
    made = long.records()[-1]
    assert isinstance(made, Compaction)
    assert (made.summary, made.first_kept_seq) == (answer["record"]["summary"], answer["record"]["firstKeptSeq"])


def test_nothing_to_compact_is_said_and_is_no_failure(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("hello"))
    before = files_of(root, session)
    for options in ((), ("--dry-run",)):
        done = cli("sessions", "compact", session.id, *options)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("not compacted: there is nothing to summarise: ")
        assert done.out.count("\n") == 1
        answer = cli("sessions", "compact", session.id, *options, "--json").json
        assert set(answer) == {"compacted", "reason", "tokensFreed"}
        assert answer["compacted"] is False and answer["tokensFreed"] == 0
    assert files_of(root, session) == before | {"turn.lock": b""}


def test_a_summary_that_would_save_nothing_is_not_recorded(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("hello"))
    session.append(assistant("hi"))
    before = files_of(root, session)
    for options in (("--dry-run",), ()):
        done = cli("sessions", "compact", session.id, "--strategy", "prose", *options)
        assert done.code == 0
        assert done.out.startswith("not compacted: the summary would not be smaller")
    assert files_of(root, session) == before | {"turn.lock": b""}


WRAPPERS = {
    "structured": "The conversation history before this point was compacted",
    "rounds": "<context_summary>\n",
    "prose": "",
}


@pytest.mark.parametrize("strategy", WRAPPERS)
def test_every_strategy_can_be_chosen(cli: Cli, long: Session, strategy: str) -> None:
    tried = cli("sessions", "compact", long.id, "--strategy", strategy, "--dry-run", "--json").json
    done = cli("sessions", "compact", long.id, "--strategy", strategy)
    assert done.code == 0 and f"into a {strategy} summary: " in done.out
    record = long.records()[-1]
    assert isinstance(record, Compaction) and record.strategy == strategy
    assert tried["record"]["strategy"] == strategy
    first, *kept = long.context().messages
    assert first.text.startswith(WRAPPERS[strategy] or record.summary)
    expected = {"structured": None, "rounds": 11, "prose": 0}[strategy]
    assert expected is None or len(kept) == expected


def test_the_choices_are_the_strategies() -> None:
    (option,) = [one for one in compact.params if one.name == "strategy"]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == get_args(Strategy)


def test_focus_is_in_the_summary(cli: Cli, long: Session) -> None:
    without = cli("sessions", "compact", long.id, "--dry-run").out
    assert "the zebra" not in without
    done = cli("sessions", "compact", long.id, "--focus", "the zebra crossing")
    assert "the zebra crossing" in done.out


def test_the_second_compaction_updates_the_first(cli: Cli, long: Session) -> None:
    first = cli("sessions", "compact", long.id, "--json").json["record"]
    talk(long)
    second = cli("sessions", "compact", long.id, "--json").json["record"]
    assert second["firstKeptSeq"] > first["seq"]
    assert "Please mend file number 0." in second["summary"]
    assert set(second["modifiedFiles"]) > set(first["modifiedFiles"])
    summaries = [one for one in long.context().messages if not one.seq]
    assert len(summaries) == 1
    assert len(long.messages()) == 48


def test_compact_while_a_turn_runs_is_refused(cli: Cli, root: Path, long: Session) -> None:
    before = files_of(root, long)
    with long.lease():
        done = cli("sessions", "compact", long.id)
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("everlog: ") and done.err.count("\n") == 1
    assert files_of(root, long) == before | {"turn.lock": b""}


def test_compact_closes_open_calls_once(cli: Cli, root: Path, long: Session) -> None:
    long.append(assistant([ToolCall("lost", "bash", {"command": "make"})]))
    before = files_of(root, long)
    tried = cli("sessions", "compact", long.id, "--dry-run")
    assert tried.err == "" and "would compact" in tried.out
    assert files_of(root, long) == before
    done = cli("sessions", "compact", long.id)
    assert done.code == 0 and done.err == "closed 1 tool call without a result\n"
    assert cli("sessions", "compact", long.id).err == ""
    closed = [one for one in long.records() if isinstance(one, Message) and one.tool_call_id == "lost"]
    assert len(closed) == 1 and closed[0].is_error


def test_the_agents_settings_count(cli: Cli, root: Path, store: Store) -> None:
    write_config(root, SMALL + '[agents.coder.compaction]\nstrategy = "rounds"\nkeep_recent_tokens = 9999\n')
    session = store.create(agent="coder")
    talk(session)
    assert "into a rounds summary" in cli("sessions", "compact", session.id).out
    talk(session)
    assert "into a prose" in cli("sessions", "compact", session.id, "--strategy", "prose").out
    other = store.create(agent="other")
    talk(other)
    assert "into a structured summary" in cli("sessions", "compact", other.id).out


def test_bad_settings_of_an_agent_are_one_line(cli: Cli, root: Path, session: Session) -> None:
    write_config(root, "[agents.coder.compaction]\nstrategy = 'magic'\n")
    for command in ("context", "compact"):
        done = cli("sessions", command, session.id)
        assert done.code == 1 and done.out == "" and done.err.count("\n") == 1
        assert "agents.coder.compaction" in done.err


def test_a_model_that_is_set_makes_the_summary(cli: Cli, root: Path, long: Session) -> None:
    with FakeServer(chat(SUMMARY)) as server:
        write_config(root, f'{SMALL}model = "there:m"\n[provider.there]\nbase_url = "{server.url}/v1"\napi_key = "k"\n')
        done = cli("sessions", "compact", long.id, "--json")
        assert (done.code, done.err) == (0, "")
        assert [one.body["model"] for one in server.sent] == ["m"]
        assert done.json["record"]["summary"].startswith("## Goal\nfinish")


def test_a_model_that_cannot_be_had_is_told_and_not_needed(cli: Cli, root: Path, long: Session) -> None:
    write_config(root, SMALL + 'model = "large-1"\n')
    done = cli("sessions", "compact", long.id, "--json")
    assert done.code == 0 and done.json["compacted"] is True
    assert done.err.count("\n") == 1 and "large-1" in done.err and "built-in" in done.err


def test_a_small_window_keeps_less(cli: Cli, session: Session) -> None:
    talk(session)
    assert cli("sessions", "compact", session.id).out.startswith("not compacted: ")
    done = cli("sessions", "compact", session.id, "--window", "4000", "--json").json
    assert done["compacted"] is True
    assert cli("sessions", "context", session.id, "--window", "4000", "--json").json["leftOut"] == []


def test_compact_works_when_it_is_switched_off_for_turns(cli: Cli, root: Path, long: Session) -> None:
    write_config(root, SMALL + "enabled = false\n")
    assert cli("sessions", "compact", long.id, "--json").json["compacted"] is True


def test_a_stale_summary_is_made_anew(cli: Cli, long: Session) -> None:
    assert cli("sessions", "compact", long.id).code == 0
    long.tombstone(1)
    assert cli("sessions", "context", long.id, "--json").json["stale"] == [1]
    was = cli("sessions", "compact", long.id, "--dry-run", "--json").json["record"]
    record = cli("sessions", "compact", long.id, "--json").json["record"]
    assert "file number 0" not in record["summary"].replace("File number 0 is mended", "")
    assert was["summary"] == record["summary"]
    assert "stale" not in cli("sessions", "context", long.id, "--json").json


def test_a_session_of_a_newer_version_is_not_compacted(cli: Cli, root: Path, long: Session) -> None:
    long.store.close()
    with (root / "sessions" / long.id / "session.jsonl").open("ab") as log:
        log.write(b'{"recordType":"message","schemaVersion":9,"seq":25,"said":"x"}\n')
    done = cli("sessions", "compact", long.id)
    assert done.code == 1 and done.out == "" and done.err.count("\n") == 1
    assert "schema version 9" in cli("sessions", "context", long.id).out


def test_a_summary_gives_a_terminal_no_orders(root: Path, cli: Cli, long: Session) -> None:
    path = f"src/{ESCAPES}.py"
    long.append(user(ESCAPES + " Please."))
    long.append(assistant([ToolCall("c", "write", {"path": path})]))
    long.append(tool_result("c", ESCAPES))
    talk(long, rounds=2)
    dangerous = set("\x1b\x07\x9b\x7f\u202e\r")
    for options in (("--dry-run",), ("--dry-run", "--json"), ("--strategy", "prose"), ()):
        done = cli("sessions", "compact", long.id, *options)
        assert done.code == 0 and not set(done.out) & dangerous
        talk(long, rounds=2)
    drawn = run_on_terminal(root, "sessions", "compact", long.id, NO_COLOR="1")
    assert drawn.code == 0 and drawn.out.startswith("compacted ")
    assert not set(drawn.out) & dangerous


# --- nonsense


@pytest.mark.parametrize(
    "arguments",
    [
        ("context",),
        ("compact",),
        ("context", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--window", "0"),
        ("context", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--window", "many"),
        ("context", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--window", "-1"),
        ("context", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--window", "99999999999999999999"),
        ("compact", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--window", "0"),
        ("compact", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--strategy", "magic"),
        ("compact", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--focus"),
        ("compact", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--full"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(cli: Cli, root: Path, arguments: tuple[str, ...]) -> None:
    done = cli("sessions", *arguments)
    assert done.code == 2 and done.out == ""
    assert done.err.startswith("everlog: ") and done.err.count("\n") == 1
    assert not root.exists()


@pytest.mark.parametrize("command", [("context",), ("compact",), ("compact", "--dry-run")])
@pytest.mark.parametrize("name", ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "../x", "nobody", ""])
def test_a_session_that_is_not_there_is_one_line(cli: Cli, root: Path, command: tuple[str, ...], name: str) -> None:
    done = cli("sessions", command[0], name, *command[1:])
    assert done.code == 1 and done.out == "" and done.err.count("\n") == 1
    assert not root.exists()


def test_context_does_not_load_what_it_does_not_need(root: Path, session: Session) -> None:
    from tests.cli.test_cli_main import imported

    session.append(user("hello"))
    assert not imported(root, "sessions", "context", session.id) & {"rich", "asyncio", "orjson"}
