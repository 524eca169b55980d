"""`everlog serve`, and the commands that talk to a daemon that runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.cli.runner import Cli, environment, run_process

CONFIG = """
[daemon]
port = 0
[turn]
titles = false
[[cron.jobs]]
id = "hello"
schedule = "0 9 * * *"
prompt = "!say hello"
[provider.local]
base_url = "http://127.0.0.1:1/v1"
api_key = "secret-key"
[mcp.files]
command = "files"
env = { TOKEN = "secret-token" }
"""


@pytest.fixture
def served(root: Path) -> Iterator[list[str]]:
    """A daemon that runs as a user would start it, and the lines it printed."""
    root.mkdir(mode=0o700)
    (root / "config.toml").write_text(CONFIG)
    process = subprocess.Popen(
        [sys.executable, "-m", "everlog", "serve", "--example"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().rstrip() for _ in range(8)]
    yield lines
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert '"event":"daemon_stop"' in err and "Traceback" not in err


def test_it_prints_where_it_is_and_makes_an_example(served: list[str], cli: Cli) -> None:
    assert served[0].startswith("everlog is running")
    told = dict(line.split(maxsplit=1) for line in served[2:])
    assert told["page"].startswith("http://127.0.0.1:") and "/open/" in told["page"]
    assert told["model"] == "offline"
    listed = cli("sessions", "list", "--json").json["sessions"]
    assert [one["name"] for one in listed] == ["An example"]
    shown = cli("sessions", "show", listed[0]["id"]).out
    assert "offline model" in shown and "current_time" in shown
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(told["page"]) as page:
        assert "An example" in page.read().decode()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(told["page"])  # it works once


def test_status_page_and_cron_talk_to_it(served: list[str], cli: Cli) -> None:
    health = cli("status", "--json").json
    assert health["ok"] and health["jobs"] == 1 and health["address"].startswith("http://127.")
    assert "uptimeSecs" in cli("status").out
    assert "/open/" in cli("page").out and "/open/" in cli("page", "--json").json["url"]
    assert cli("cron", "list", "--json").json["jobs"][0]["id"] == "hello"
    session = cli("cron", "run", "hello").out.strip()
    assert cli("sessions", "show", session, "--json").json["metadata"]["cronJobId"] == "hello"
    until = time.monotonic() + 60
    while cli("cron", "list", "--json").json["jobs"][0]["running"]:  # it is, until it has answered
        assert time.monotonic() < until
    assert cli("cron", "pause", "hello").out == "hello is paused\n"
    assert "paused" in cli("cron", "list").out
    assert cli("cron", "resume", "hello").out == "hello is resumed\n"
    assert "waiting" in cli("cron", "list").out
    unknown = cli("cron", "pause", "nothing")
    assert (unknown.code, unknown.err) == (1, "everlog: no job named 'nothing'\n")


def test_a_second_one_is_refused(served: list[str], root: Path) -> None:
    second = run_process(root, "serve")
    assert second.code == 1 and second.err.count("\n") == 1
    assert "http://127.0.0.1:" in second.err


@pytest.mark.parametrize("command", [("status",), ("page",), ("cron", "list")])
def test_without_a_daemon_there_is_one_clear_line(cli: Cli, command: tuple[str, ...]) -> None:
    answer = cli(*command)
    assert answer.code == 1
    assert answer.err.startswith("everlog: no daemon is running for ")
    assert "everlog serve" in answer.err


def test_keys_are_not_shown_with_the_configuration(root: Path, cli: Cli) -> None:
    root.mkdir(mode=0o700)
    (root / "config.toml").write_text(CONFIG)
    for answer in (cli("config", "show"), cli("config", "show", "--json")):
        assert answer.code == 0 and "secret" not in answer.out and "(hidden)" in answer.out


@pytest.mark.parametrize(
    "config", ['[[cron.jobs]]\nid = "a"\nschedule = "x"\nprompt = "p"\n', '[daemon]\nhost = "0.0.0.0"\n']
)
def test_a_configuration_that_cannot_be_used_is_one_clear_line(root: Path, config: str) -> None:
    root.mkdir(mode=0o700)
    (root / "config.toml").write_text(config)
    answer = run_process(root, "serve", "--port", "0")
    assert answer.code == 1 and answer.out == ""
    assert answer.err.count("\n") == 1 and "Traceback" not in answer.err


def test_the_banner_comes_before_the_log(root: Path) -> None:
    root.mkdir(mode=0o700)
    (root / "config.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "everlog", "serve", "--example"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(root), text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(lines).startswith("everlog is running")
        first_event = next(line for line in lines if line.startswith("{"))
        assert '"event":"daemon_start"' in first_event
        process.send_signal(signal.SIGINT)
