"""A process that runs turns is killed before or after each of its writes; another goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import everlog
from everlog.app import open_runtime
from everlog.settings import Settings, TurnSettings

PROMPTS = ('!call current_time {}\n!call current_time {"timezone": "Asia/Tokyo"}', "!say two", "!say three")
SETTINGS = Settings(turn=TurnSettings(titles=False))
WRITES = 13  # at the least: 3 inputs, 1 message with calls, 2 results, 3 answers, 3 ends, 1 queued

CHILD = """
import asyncio, itertools, os, signal, sys
from everlog.app import open_runtime
from tests.crash.test_crash_turns import PROMPTS, SETTINGS

root, at, before = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "before"

async def main():
    runtime = open_runtime(home=root, create=True, settings=SETTINGS)
    port = runtime.store.sync.port
    append, numbers = port.append, itertools.count(1)

    def counted(*arguments, **named):
        number = next(numbers)
        if before and number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        stored = append(*arguments, **named)
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return stored

    port.append = counted
    await runtime.start()
    session = await runtime.create()
    runs = []
    for text in PROMPTS:
        runs.append(await runtime.submit(session, text))
        print(text.replace(chr(10), "|"), flush=True)  # acknowledged
    for run in runs:
        await run.answer()

asyncio.run(main())
"""


@pytest.mark.crash
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
def test_a_kill_at_any_write_loses_nothing_and_the_queue_goes_on(tmp_path: Path, at: int, when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), str(at), when],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -9, done.stderr
    acknowledged = [line.replace("|", "\n") for line in done.stdout.splitlines()]

    async def go_on() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=SETTINGS)
        await runtime.start()
        listed = await runtime.store.list()
        session = await runtime.store.session(listed[0].id)
        run = await runtime.submit(session, "!say last")
        assert (await run.answer()).reply.text == "last"
        await runtime.drain(5)
        await runtime.store.close()

    asyncio.run(go_on())
    with everlog.open_store(tmp_path, create=True) as store:
        session = store.session(store.list()[0].id)
        said = session.messages()
        inputs = [one.text for one in said if one.role == "user"]
        kept = [text for text in PROMPTS if text in inputs]
        assert inputs == [*kept, "!say last"], "each once, in order"
        assert set(acknowledged) <= set(kept)
        calls = [call.id for one in said for call in one.tool_calls]
        results = [one.tool_call_id or "" for one in said if one.role == "toolResult"]
        assert sorted(calls) == sorted(results)
        answers = [one.text for one in said if one.role == "assistant" and not one.tool_calls]
        # One turn may have been under way: it is reported, not run again.
        kinds = [one.kind for one in session.records() if isinstance(one, everlog.Event)]
        assert kinds.count("turn_end") + kinds.count("turn_interrupted") == len(inputs)
        assert kinds.count("turn_interrupted") <= 1
        assert len(answers) >= len(inputs) - kinds.count("turn_interrupted")
        assert not session.metadata.unfinished and session.verify() == ()
