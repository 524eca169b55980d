"""Each extra of the wheel by itself: its main command works, and what needs another one says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.providers.fake_server import FakeServer, chat
from tests.wheel.conftest import Environment

Install = Callable[[str], Environment]

pytestmark = pytest.mark.slow


def test_the_core_keeps_sessions_and_names_the_extras_that_it_lacks(install: Install) -> None:
    core = install("")
    printed = core.script(
        "import everlog, sys\n"
        "with everlog.open_store() as store:\n"
        "    store.session('mine', create=True).append('hello')\n"
        "    print([message.text for message in store.session('mine').messages()])\n"
    )
    assert printed == "['hello']\n"
    assert core.run(core.everlog, "sessions", "list", code=1).stderr == (
        "everlog: the command line needs click (pip install 'everlog[cli]')\n"
    )
    for call, extra in (
        ("everlog.open_store('postgresql://localhost/x')", "postgres"),
        ("everlog.open_store().provider('openai:gpt-5')", "agent"),
        ("everlog.open_store(settings=exact)", "tokens"),
    ):
        printed = core.script(
            "import everlog\n"
            "from everlog.settings import TokenSettings\n"
            "exact = everlog.Settings(tokens=TokenSettings(counter='o200k_base'))\n"
            f"try:\n    {call}\n"
            "except everlog.SettingsError as error:\n    print(error)\n"
        )
        assert f"everlog[{extra}]" in printed and printed.count("\n") == 1, call


def test_the_command_line_chats_and_lists(install: Install) -> None:
    cli = install("cli")
    assert "offline" in cli.run(cli.everlog, "chat", "-p", "hi").stdout
    listed = json.loads(cli.run(cli.everlog, "sessions", "list", "--json").stdout)
    assert listed["total"] == 1
    for command, extra in (("serve", "daemon"), ("archive", "archive")):
        arguments = [command, str(cli.home)] if command == "archive" else [command]
        refused = cli.run(cli.everlog, *arguments, code=1).stderr
        assert f"everlog[{extra}]" in refused and refused.count("\n") == 1


def test_the_daemon_serves_a_page_and_has_the_command_line(install: Install) -> None:
    daemon = install("daemon")
    command = [str(daemon.everlog), "serve", "--port", "0", "--example"]
    with subprocess.Popen(command, cwd=daemon.home, env=daemon.variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert any("page" in line for line in process.stdout)
            status = json.loads(daemon.run(daemon.everlog, "status", "--json").stdout)
            assert status["ok"] and status["sessions"] == 1
        finally:
            process.terminate()
        assert process.wait(60) == 0


AGENT = """
import asyncio, sys
import everlog
from everlog.settings import ProviderSettings, TurnSettings

settings = everlog.Settings(
    turn=TurnSettings(titles=False),
    provider={"local": ProviderSettings(api="openai", base_url=sys.argv[1], api_key="none")},
)

async def main() -> None:
    async with everlog.open_async_store("memory:", settings=settings) as store:
        agent = everlog.Agent(store, model="local:small")
        print((await agent.run("hello", session="mine")).text)

asyncio.run(main())
"""


def test_an_agent_talks_to_a_model(install: Install) -> None:
    with FakeServer(chat("Good ", "morning.")) as server:
        assert install("agent").script(AGENT, f"{server.url}/v1") == "Good morning.\n"


def test_exact_tokens_are_counted(install: Install) -> None:
    printed = install("tokens").script(
        "import everlog\n"
        "from everlog.settings import TokenSettings\n"
        "settings = everlog.Settings(tokens=TokenSettings(counter='o200k_base'))\n"
        "print(everlog.open_store('memory:', settings=settings).count('hello world'))\n"
    )
    assert printed == "2\n"


def test_an_archive_is_made_and_verified(install: Install) -> None:
    archive = install("archive")
    (archive.home / "files").mkdir()
    (archive.home / "files" / "a.jsonl").write_text('{"a":1}\n')
    printed = archive.script(
        "from pathlib import Path\n"
        "from everlog.interop.archive.backup import copy\n"
        "from everlog.interop.archive.verify import verify\n"
        "root = Path('root').absolute()\n"
        "print(copy(root, [Path('files').absolute()]).new, verify(root).damage)\n"
    )
    assert printed == "1 []\n"


def test_a_store_on_postgresql_is_asked_for_its_server(install: Install) -> None:
    printed = install("postgres").script(
        "import everlog\n"
        "try:\n    everlog.open_store('postgresql://localhost:1/x').list()\n"
        "except everlog.StoreFailedError as error:\n    print(error.message)\n"
    )
    assert printed.strip()


def test_changes_of_files_are_watched(install: Install) -> None:
    printed = install("watch").script(
        "import threading\n"
        "import everlog\n"
        "with everlog.open_store('root', create=True) as store:\n"
        "    session = store.create()\n"
        "    session.append('x')\n"
        "    stop, seen = threading.Event(), threading.Event()\n"
        "    def write():\n"
        "        while not seen.wait(0.05):\n"
        "            session.append('y')\n"
        "    writer = threading.Thread(target=write)\n"
        "    writer.start()\n"
        "    changed = next(iter(store.port.watch(stop)))\n"
        "    seen.set()\n"
        "    writer.join()\n"
        "    print(changed == {session.id})\n"
    )
    assert printed == "True\n"
