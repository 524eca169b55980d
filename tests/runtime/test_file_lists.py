"""The files that an agent's tools touched are in its summaries, whatever the tools are called."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everlog.agent.tools import tool
from everlog.app import open_runtime
from everlog.model import Compaction
from everlog.settings import CompactionSettings, Settings, TurnSettings

SETTINGS = Settings(turn=TurnSettings(titles=False), compaction=CompactionSettings(keep_recent_tokens=1_024))


@tool(name="files__read_file")
def read_file(path: str) -> str:
    """Return a file."""
    return f"content of {path}\n" + "a line of it\n" * 600


@tool(name="mcp__fs__edit_file")
def edit_file(path: str) -> str:
    """Change a file."""
    return f"changed {path}"


@tool(file="write")
def reformat(path: str) -> str:
    """Reformat a file."""
    return f"reformatted {path}"


def test_tools_of_servers_and_declared_ones_fill_the_lists_through_two_compactions(tmp_path: Path) -> None:
    async def scenario() -> list[Compaction]:
        runtime = open_runtime(home=tmp_path, create=True, settings=SETTINGS, tools=[read_file, edit_file, reformat])
        await runtime.start()
        session = await runtime.create()
        for first, second in (("a.py", "b.py"), ("c.py", "a.py")):
            for call in (f'files__read_file {{"path": "{first}"}}', f'mcp__fs__edit_file {{"path": "{second}"}}'):
                await (await runtime.submit(session, f"!call {call}")).answer()
            await (await runtime.submit(session, f'!call reformat {{"path": "{second}.txt"}}')).answer()
            for _ in range(3):
                await (await runtime.submit(session, '!call files__read_file {"path": "d.py"}')).answer()
            outcome = await runtime.compact(session)
            assert outcome.compacted, outcome.reason
        records = [record for record in await session.records() if isinstance(record, Compaction)]
        await runtime.drain(1)
        await runtime.store.close()
        return records

    first, second = asyncio.run(scenario())
    assert (first.read_files, first.modified_files) == (("a.py", "d.py"), ("b.py", "b.py.txt"))
    assert second.read_files == ("c.py", "d.py")
    assert second.modified_files == ("a.py", "a.py.txt", "b.py", "b.py.txt")
