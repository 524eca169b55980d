"""What `import everlog` offers, and what it costs."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import everlog

SRC = Path(__file__).parents[1] / "src"

NAMES = [
    "Agent",
    "Answer",
    "AsyncSession",
    "AsyncStore",
    "Compaction",
    "ConflictError",
    "Context",
    "ContextOverflowError",
    "Damaged",
    "Delta",
    "Event",
    "EverlogError",
    "File",
    "FormatError",
    "Health",
    "Hit",
    "Hook",
    "Image",
    "Inbound",
    "InboundResult",
    "InvalidIdError",
    "Lease",
    "LiveMessages",
    "LogDamagedError",
    "McpServer",
    "Message",
    "Meta",
    "Metadata",
    "Metrics",
    "NotFoundError",
    "OtherBlock",
    "Outcome",
    "Page",
    "Part",
    "PreparedCall",
    "Provider",
    "ProviderDeniedError",
    "ProviderError",
    "ProviderRefusedError",
    "ProviderUnavailableError",
    "QueueFullError",
    "RecoveredSession",
    "Request",
    "Results",
    "Rewind",
    "Routed",
    "Router",
    "Routing",
    "Run",
    "RunCancelledError",
    "RunEvent",
    "Runtime",
    "Scope",
    "Session",
    "SessionAccess",
    "SessionBusyError",
    "SessionHit",
    "SessionRow",
    "Settings",
    "SettingsError",
    "Spender",
    "Store",
    "StoreFailedError",
    "StoreFullError",
    "Text",
    "Thinking",
    "Tombstone",
    "ToolCall",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "UnconfirmedError",
    "Unknown",
    "UnsupportedError",
    "Usage",
    "UsageReport",
    "UsageRow",
    "View",
    "__version__",
    "assistant",
    "events",
    "load_settings",
    "open_async_store",
    "open_runtime",
    "open_store",
    "tool",
    "tool_result",
    "user",
]

# Everything that is neither Python's own nor one of the three that the core may use is refused.
ONLY_THE_CORE = """
import sys

class Refuse:
    allowed = {*sys.stdlib_module_names, "everlog", "msgspec", "apsw", "anyio", "idna", "sniffio", "typing_extensions"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed and not name.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"refused: {name}", name=name)
        return None

sys.meta_path.insert(0, Refuse())
for name in ("click", "rich", "watchfiles"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        assert str(error) == f"refused: {name}"
    else:
        raise AssertionError(name)
"""

END_TO_END = """
import asyncio
import everlog

for name in everlog.__all__:
    getattr(everlog, name)
with everlog.open_store(sys.argv[1], create=True) as store:
    session = store.create(title="core", aliases=["core"])
    session.append(everlog.user("one"), expected_seq=0)
    call = everlog.ToolCall("tc_1", "bash", {"command": "ls"})
    session.append_many([everlog.assistant([call]), everlog.tool_result("tc_1", "file")])
    session.append(everlog.Compaction(first_kept_seq=2, summary="one"))
    session.tombstone(3)
    session.restore(3)
    branch = session.fork(at=1)
    session.rename("renamed")
    session.end_turn(duration_ms=1000)
    assert len(session.context().messages) == 3
    session.rewind(1)
    assert [message.seq for message in store.session("core").messages()] == [1]
    assert session.verify() == () and session.repair() == ()
    assert {one.id for one in store.list()} == {session.id, branch.id}
    assert branch.delete() == 1

async def main():
    async with everlog.open_async_store(sys.argv[1], create=True) as store:
        session = await store.session("core")
        await session.append(everlog.user("two"))
        assert (await session.metadata()).title == "renamed"

asyncio.run(main())
"""


def _python(code: str, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(SRC), os.environ.get("PYTHONPATH"))))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERLOG_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": path},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_public_names_are_these() -> None:
    assert everlog.__all__ == NAMES
    assert dir(everlog) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_imported(name: str) -> None:
    assert getattr(everlog, name) is not None


ELSEWHERE = {"Any", "AsyncIterator", "Awaitable", "Content", "Entry", "Iterable", "Iterator", "None", "R", "Self", "T"}
# What turns and `everlog route` take from them.
INNER = {"Compactor", "MessageFacts", "RouteDecision", "RunnableTool"}
RECORDS = {"AnyRecord"}  # the union of the records, each of which is public


@pytest.mark.parametrize(
    "kind", ["Store", "Session", "AsyncStore", "AsyncSession", "Agent", "Runtime", "Run", "Hook", "Router"]
)
def test_everything_that_a_public_method_returns_is_public(kind: str) -> None:
    for name, member in vars(getattr(everlog, kind)).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not callable(function):
            continue
        result = str(inspect.signature(function).return_annotation)
        types = set(re.findall(r"\b[A-Z]\w*", result))
        assert types <= {*everlog.__all__, *ELSEWHERE, *INNER, *RECORDS}, f"{kind}.{name} -> {result}"


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = everlog.nothing_like_this


def test_importing_the_package_alone_loads_no_dependency() -> None:
    heavy = ("click", "rich", "apsw", "msgspec", "orjson", "watchfiles", "asyncio")
    told = _python(f"import everlog, sys; print([n for n in {heavy} if n in sys.modules])")
    assert told == "[]\n"


def test_opening_a_store_loads_neither_the_command_line_nor_asyncio(tmp_path: Path) -> None:
    told = _python(
        "import everlog, sys; everlog.open_store(sys.argv[1], create=True).create().append(everlog.user('x'))"
        "; print([n for n in ('click', 'rich', 'watchfiles', 'asyncio') if n in sys.modules])",
        str(tmp_path / "root"),
    )
    assert told == "[]\n"


def test_the_library_works_with_the_core_dependencies_alone(tmp_path: Path) -> None:
    _python(ONLY_THE_CORE + END_TO_END, str(tmp_path / "root"))
