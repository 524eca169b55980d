"""`sessions stats`: what was spent, as text, as JSON and on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everlog.cli.sessions_stats import CANDIDATES, bar_chart
from everlog.model import ToolCall, Usage, assistant, user
from everlog.session import Session, Store
from tests.cli.runner import Cli, run_on_terminal, run_process

ESCAPES = "\x1b[31mred\x1b]0;owned\x07 \x9b2J \u202e drow"
DAYS = ("2026-11-14T10:00:00.000Z", "2026-11-16T10:00:00.000Z")


def spend(session: Session, stamp: str, tokens: int = 1000, **more: float) -> None:
    """An exchange of a model that is on no price list."""
    usage = Usage(input_tokens=tokens, output_tokens=tokens // 10, cost=more.get("cost", 0.0))
    calls = [ToolCall("tc_1", "ls", {})]
    session.append(user("go", timestamp=stamp))
    session.append(assistant(calls, model="house-1", usage=usage, timestamp=stamp))


@pytest.fixture
def ledger(store: Store) -> list[Session]:
    """Two sessions of two agents that spent something on two days."""
    made = [store.create(title="Small", agent="main"), store.create(title="Large", agent="other")]
    for number, session in enumerate(made, 1):
        for stamp in DAYS:
            spend(session, stamp, tokens=1000 * number, cost=0.25 * number)
    return made


def test_totals_lines_and_the_costliest_sessions_are_shown(cli: Cli, ledger: list[Session]) -> None:
    done = cli("sessions", "stats")
    assert done.code == 0
    totals, lines, costliest = done.out.split("\n\n")
    assert "2 sessions, 4 turns, 4 tool calls, $1.50" in totals
    assert "6,600 tokens: 6,000 in, 600 out" in totals
    assert re.search(r"2026-11-14 +2 +2 +3\.3k +\$0\.75\n2026-11-15 +0 +0 +0\n2026-11-16", lines)
    large, small = costliest.splitlines()[1:]
    assert large.startswith(ledger[1].id) and "Large" in large and large.endswith("$1.00")
    assert small.startswith(ledger[0].id) and "Small" in small


def test_a_session_that_took_nothing_is_not_named(cli: Cli, store: Store, ledger: list[Session]) -> None:
    store.create(title="Only appended").append(user("hello", timestamp=DAYS[0]))
    done = cli("sessions", "stats")
    assert "3 sessions, 5 turns" in done.out and "Only appended" not in done.out
    assert len(done.out.split("\n\n")[2].splitlines()) == 3


def test_nothing_but_such_sessions_leaves_no_table(cli: Cli, store: Store) -> None:
    store.create(title="Only appended").append(user("hello", timestamp=DAYS[0]))
    done = cli("sessions", "stats")
    assert "1 session, 1 turn" in done.out and "TITLE" not in done.out


def test_one_session_has_its_own(cli: Cli, ledger: list[Session]) -> None:
    done = cli("sessions", "stats", ledger[0].id, "--by", "month")
    assert done.out.startswith("2 turns, 2 tool calls, $0.50\n")
    assert re.search(r"^2026-11 +2 +2 +2\.2k +\$0\.50$", done.out, re.MULTILINE)
    assert ledger[1].id not in done.out


def test_days_and_agents_can_be_chosen(cli: Cli, ledger: list[Session]) -> None:
    answer = cli("sessions", "stats", "--since", "2026-11-15", "--agent", "other", "--json").json
    assert [one["name"] for one in answer["lines"]] == ["2026-11-16"]
    assert answer["total"]["inputTokens"] == 2000 and answer["sessions"] == 1
    answer = cli("sessions", "stats", "--until", "2026-11-15", "--json").json
    assert [one["name"] for one in answer["lines"]] == ["2026-11-14"]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("day", ["2026-11-14", "2026-11-15", "2026-11-16"]),
        ("week", ["2026-11-09", "2026-11-16"]),
        ("month", ["2026-11"]),
        ("model", ["house-1"]),
    ],
)
def test_lines_are_by_what_was_asked_for(cli: Cli, ledger: list[Session], by: str, names: list[str]) -> None:
    answer = cli("sessions", "stats", "--by", by, "--json").json
    assert answer["by"] == by
    assert [one["name"] for one in answer["lines"]] == names


def test_a_model_without_a_price_is_named(cli: Cli, session: Session) -> None:
    spend(session, DAYS[0])
    done = cli("sessions", "stats")
    assert "no cost known" in done.out
    assert done.err == "no price is known for house-1\n"
    assert cli("sessions", "stats", "--json").json["unpriced"] == ["house-1"]


def test_what_has_no_stated_cost_is_estimated_and_marked(cli: Cli, session: Session) -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=10)
    session.append(assistant("x", model="claude-sonnet-4-5", usage=usage, timestamp=DAYS[0]))
    done = cli("sessions", "stats")
    assert "≈ $" in done.out and done.err == ""
    answer = cli("sessions", "stats", "--json").json
    assert answer["total"]["cost"] == 0.0 and answer["total"]["estimate"] > 0.1


def test_an_estimate_beside_a_stated_cost_of_the_same_model_counts_in_the_order(cli: Cli, store: Store) -> None:
    model = "claude-sonnet-4-5"
    for cost in (0.01, 0.02):
        session = store.create(title=f"stated {cost}")
        usage = Usage(input_tokens=10, cost=cost)
        session.append(assistant("x", model=model, usage=usage, timestamp=DAYS[1]))
        if cost == 0.01:
            usage = Usage(input_tokens=1_000_000, output_tokens=100_000)
            session.append(assistant("y", model=model, usage=usage, timestamp=DAYS[0]))
    answer = cli("sessions", "stats", "--json").json
    first, second = answer["costliest"]
    assert (first["title"], second["title"]) == ("stated 0.01", "stated 0.02")
    assert first["spent"]["cost"] == 0.01
    assert first["spent"]["estimate"] == answer["total"]["estimate"] > 0.1


def test_the_most_expensive_session_is_named_though_a_hundred_took_more_tokens(cli: Cli, store: Store) -> None:
    for number in range(CANDIDATES + 1):
        usage = Usage(input_tokens=1000 + number)
        made = store.create(title=f"number {number}")
        made.append(assistant("x", model="house-1", usage=usage, timestamp=DAYS[0]))
    usage = Usage(input_tokens=1, cost=9.0)
    made = store.create(title="Few and dear")
    made.append(assistant("x", model="large-1", usage=usage, timestamp=DAYS[0]))
    first, second, *_ = cli("sessions", "stats", "--json").json["costliest"]
    assert (first["title"], second["title"]) == ("Few and dear", f"number {CANDIDATES}")


@pytest.mark.parametrize("wrong", ["1969-12-31", "9999-12-31"])
def test_a_record_of_a_wrong_clock_adds_one_line(cli: Cli, session: Session, ledger: list[Session], wrong: str) -> None:
    spend(session, f"{wrong}T12:00:00.000Z")
    for arguments in ((), (session.id,)):
        done = cli("sessions", "stats", *arguments, "--json")
        assert done.code == 0
        names = [one["name"] for one in done.json["lines"]]
        assert sorted(names) == sorted([wrong] if arguments else [wrong, *(d[:10] for d in DAYS)])


def test_nothing_spent_is_said_and_is_no_failure(cli: Cli, session: Session) -> None:
    done = cli("sessions", "stats")
    assert (done.code, done.out, done.err) == (0, "", "no usage yet\n")
    done = cli("sessions", "stats", session.id)
    assert (done.code, done.err) == (0, "no usage matches\n")


def test_what_makes_no_sense_is_refused(cli: Cli, session: Session) -> None:
    assert cli("sessions", "stats", "--since", "yesterdayish").code == 2
    assert cli("sessions", "stats", "--by", "fortnight").code == 2
    assert cli("sessions", "stats", session.id, "--agent", "main").code == 2
    assert cli("sessions", "stats", "01ARZ3NDEKTSV4RRFFQ69G5FAV").code == 1


def test_names_that_were_stored_do_not_reach_the_terminal_unescaped(root: Path, store: Store) -> None:
    session = store.create(title=ESCAPES, agent=ESCAPES)
    usage = Usage(input_tokens=5)
    session.append(assistant("x", model=ESCAPES, usage=usage, timestamp=DAYS[0]))
    store.close()
    for arguments in ((), ("--by", "model")):
        done = run_process(root, "sessions", "stats", *arguments)
        assert done.code == 0
        shown = done.out + done.err
        assert not set("\x1b\x07\x9b\u202e") & set(shown) and "red" in shown


def test_a_terminal_gets_bars_that_fit_and_a_pipe_gets_none(root: Path, store: Store, ledger: list[Session]) -> None:
    store.close()
    shown = run_on_terminal(root, "sessions", "stats", NO_COLOR="1").out
    rows = [line for line in shown.splitlines() if line.startswith("2026-11-1")]
    assert rows[0].count("█") == rows[2].count("█") > 20 and "█" not in rows[1]
    assert max(map(len, shown.splitlines())) <= 120
    assert "█" not in run_process(root, "sessions", "stats").out
    narrow = run_on_terminal(root, "sessions", "stats", NO_COLOR="1", COLUMNS="44").out
    assert max(map(len, [line for line in narrow.splitlines() if line[:5] == "2026-"])) <= 44


def test_a_bar_is_as_long_as_its_value_and_a_small_one_is_seen() -> None:
    assert bar_chart([8, 4, 0.001, 0], 4) == ["████", "██", "▏", ""]
    assert bar_chart([0, 0], 4) == ["", ""]
    assert bar_chart([], 4) == []
