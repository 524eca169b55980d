"""`everlog chat` in scripts: one prompt, one answer, an exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import everlog
from everlog.session import Store
from tests.cli.runner import environment, run_process
from tests.daemon.running_daemon import Daemon
from tests.providers.fake_server import FakeServer, refusal
from tests.terminal.chat_driver import Start, only_session, stops, use_server

Serve = Callable[..., Daemon]


def wait_for_turn(store: Store) -> None:
    """Wait until a turn is under way in the only session."""
    until, pause = time.monotonic() + 60, threading.Event()
    while not (store.list().total and only_session(store).metadata.run):
        assert time.monotonic() < until
        pause.wait(0.02)


def test_a_prompt_is_answered_with_the_text_alone(root: Path, store: Store) -> None:
    done = run_process(root, "chat", "-p", "!say **just** this", TERM="xterm")
    assert (done.code, done.out, done.err) == (0, "**just** this\n", "")
    assert [one.role for one in only_session(store).messages()] == ["user", "assistant"]


def test_words_are_the_prompt(root: Path, store: Store) -> None:
    done = run_process(root, "chat", "!say", "hello")
    assert (done.code, done.out, done.err) == (0, "hello\n", "")
    store.create(agent="poet")
    assert run_process(root, "chat", "!say a verse", "--agent", "poet").out == "a verse\n"
    assert store.list(agent="main").total == 1, "a session has that agent, so it is not unknown"


def test_an_answer_in_json_has_the_messages_and_what_they_took(root: Path, daemon: Serve) -> None:
    asked = ("chat", "--json", "-p", '!call current_time {"timezone": "UTC"}')
    here = run_process(root, *asked).json
    daemon()
    there = run_process(root, *asked).json
    for one in (here, there):
        assert list(one) == ["sessionId", "runId", "reply", "messages", "usage"]
        roles = [message["role"] for message in one["messages"]]
        assert roles == ["user", "assistant", "toolResult", "assistant"]
        assert one["reply"] == one["messages"][-1]["content"][0]["text"]
        assert one["usage"]["totalTokens"] > 0
    assert here["sessionId"] == there["sessionId"]
    assert here["runId"] != there["runId"]
    first, second = here["messages"][0], there["messages"][0]
    assert first.keys() == second.keys()
    assert second["seq"] > first["seq"]


def test_piped_input_is_said_and_added_to_a_prompt(root: Path, store: Store) -> None:
    assert run_process(root, "chat", stdin=b"!say piped\n").out == "piped\n"
    both = run_process(root, "chat", "-p", "!say both", stdin=b"the log:\nline 2\n")
    assert both.out == "both\n"
    said = [one.text for one in only_session(store).messages() if one.role == "user"]
    assert said == ["!say piped", "!say both\n\nthe log:\nline 2"]


def test_an_answer_on_a_terminal_is_made_safe_and_a_pipe_gets_it_whole(root: Path, terminal: Start) -> None:
    text = "a\x1b[31mred\u202e"
    piped = run_process(root, "chat", stdin=f"!say {text}".encode())
    assert piped.out == f"{text}\n"
    screen = terminal("chat", "-p", "!say x\x1b[31my")
    assert screen.wait_for_end() == 0
    assert "x␛[31my" in screen.text


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("--new", "--resume"), 2, "--new cannot be combined with --resume"),
        (("--resume", "01ABCDEF", "--agent", "x"), 2, "--resume ID cannot be combined with --agent"),
        (("--resume", "01ABCDEFG", "-p", "x"), 1, "01ABCDEFG"),
        (("--resume", "-p", "x"), 1, "there is no session to resume"),
        (("-p", "  "), 2, "the prompt is empty"),
        (("hello", "-p", "x"), 2, "give the prompt once"),
        (("hello", "--agent", "pote"), 1, "there is no agent 'pote' (known: main, poet; name another"),
        (("-p", "!fail denied"), 1, "a key that is not accepted"),
        (("-p", "x", "--model", "nobody:m"), 1, "nobody"),
        (("--nonsense",), 2, "--nonsense"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(
    root: Path, arguments: tuple[str, ...], code: int, problem: str
) -> None:
    done = run_process(root, "chat", *arguments)
    assert done.code == code
    assert done.out == ""
    assert done.err.startswith("everlog: ")
    assert problem in done.err
    assert done.err.count("\n") == 1


def test_a_conversation_needs_a_terminal(root: Path) -> None:
    assert run_process(root, "chat").code == 2


@pytest.mark.parametrize("served", [False, True])
def test_an_interrupt_stops_the_turn_and_ends_with_130(root: Path, store: Store, daemon: Serve, served: bool) -> None:
    if served:
        daemon()
    with subprocess.Popen(
        [sys.executable, "-m", "everlog", "chat", "-p", "!wait 60"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
    ) as process:
        wait_for_turn(store)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == (b"", b"everlog: interrupted\n")
    assert stops(only_session(store)) == ["cancelled"]


def test_a_daemon_that_dies_during_one_is_one_line(root: Path, store: Store, daemon: Serve) -> None:
    serving = daemon()
    with subprocess.Popen(
        [sys.executable, "-m", "everlog", "chat", "-p", "!wait 60"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
    ) as process:
        wait_for_turn(store)
        serving.process.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == b""
    assert err.startswith(b"everlog: the daemon ")
    assert err.count(b"\n") == 1


def test_other_commands_do_not_load_what_only_a_conversation_needs(root: Path) -> None:
    check = (
        "import sys; from everlog.cli.main import main\n"
        "for given in (['--version'], ['sessions', 'list'], ['--help']): main(given)\n"
        "assert not {'prompt_toolkit', 'asyncio'} & set(sys.modules), 'loaded'\n"
        "print(main(['chat', '-p', '!say x']), 'prompt_toolkit' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check],
        env=environment(root),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr in ("", "no sessions yet (everlog sessions new)\n")
    assert done.stdout.endswith("x\n0 False\n")


def test_the_answer_is_given_through_the_daemon_when_one_runs(root: Path, daemon: Serve) -> None:
    serving = daemon()
    assert run_process(root, "chat", "-p", "!say hello").out == "hello\n"
    with serving.client() as client:
        assert client.health()["turns"] == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('[turn]\nmodel = "nowhere:m"\n', "there is no provider 'nowhere'"),
        ('[turn]\nmodel = "there:m"\n[provider.there]\napi_key_env = "NO_SUCH_KEY"\n', "NO_SUCH_KEY is not set"),
    ],
)
def test_a_prompt_that_no_model_can_answer_leaves_no_session(root: Path, store: Store, config: str, said: str) -> None:
    (root / "config.toml").write_text(config)
    refused = run_process(root, "chat", "-p", "hello")
    assert refused.code == 1 and said in refused.err
    assert store.list().total == 0


def test_a_prompt_that_the_provider_refuses_leaves_only_what_was_there(root: Path, store: Store) -> None:
    with FakeServer(*[refusal(401, "wrong key")] * 2) as server:
        use_server(root, server)
        refused = run_process(root, "chat", "-p", "hello")
        assert refused.code == 1 and f"there:m at {server.url}/v1: HTTP 401: wrong key" in refused.err
        assert store.list().total == 0
        session = store.create()
        session.append(everlog.user("an earlier one"))
        assert run_process(root, "chat", "-p", "hello").code == 1
    assert [message.text for message in only_session(store).messages()] == ["an earlier one", "hello"]
