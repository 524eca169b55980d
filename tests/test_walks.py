"""The five walks of docs/ARCHITECTURE.md: the functions that they list are passed in that order."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import httpx2
import pytest

import everlog
from everlog.app import open_runtime
from everlog.daemon.event_stream import EventStream
from everlog.daemon.http_app import build_app
from everlog.daemon.listing_events import ListingWatcher
from everlog.daemon.request_limits import RateLimiter
from everlog.runtime.runtime import Runtime
from everlog.settings import FurtherStoreSettings, MemorySettings, Settings, TurnSettings

ROOT = Path(__file__).parents[1]
PACKAGE = str(Path(everlog.__file__).parent)
SESSION = "5f0c1d8e-7a44-4be1-9d3b-2f6d0c9e8a11"
Walk = Callable[[Path], Callable[[], object]]  # prepares, and returns what is traced


def _listed() -> dict[str, list[str]]:
    """The functions of each walk, by its heading."""
    section = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("## Five walks\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"### (.+?)\n.*?```\n(.*?)```", section, re.DOTALL)
    return {title: [line.split()[0] for line in block.splitlines() if line[:1].strip()] for title, block in blocks}


def _trace(work: Callable[[], object], event: str) -> list[str]:
    """The functions of everlog that are called, or return, in order, in whatever thread."""
    passed: list[str] = []

    def note(frame: FrameType, kind: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if kind == event and file.startswith(PACKAGE):
            module = file[len(PACKAGE) + 1 : -3].replace("/", ".")
            passed.append(f"{module}.{frame.f_code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return passed


def _settings() -> Settings:
    return Settings(turn=TurnSettings(titles=False))


def _with_client(root: Path, settings: Settings, use: Callable[[httpx2.AsyncClient], Awaitable[object]]) -> None:
    """Use the routes of a daemon over a runtime of its own."""

    async def serve() -> None:
        runtime: Runtime = open_runtime(home=root, create=True, settings=settings)
        app = build_app(runtime, lambda: "", EventStream(runtime, RateLimiter(lambda: 1.0), ListingWatcher(runtime)))
        await runtime.start()
        transport = httpx2.ASGITransport(app)  # type: ignore[arg-type]  # a Litestar is one
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await use(client)
        await runtime.drain(1)
        await runtime.store.close()

    asyncio.run(serve())


def append_to_bytes(root: Path) -> Callable[[], object]:
    session = everlog.open_store(root, create=True).create()
    session.append("first")
    return lambda: session.append("second")


def inbound_message_to_answer(root: Path) -> Callable[[], object]:
    async def send(client: httpx2.AsyncClient) -> None:
        context = {"channel": "telegram", "chat_id": "7", "chat_type": "direct", "sender_id": "7"}
        answer = await client.post("/api/inbound", json={"context": context, "text": "!tool clock {}"})
        assert answer.status_code == 200 and answer.json()["reply"], answer.text

    return lambda: _with_client(root, _settings(), send)


def foreign_line_to_page(root: Path) -> Callable[[], object]:
    folder = root / "claude" / "-srv-shop"
    folder.mkdir(parents=True)
    line = (
        f'{{"type":"user","uuid":"{SESSION}","parentUuid":null,"sessionId":"{SESSION}","cwd":"/srv/shop",'
        '"version":"2.0.0","timestamp":"2026-11-01T10:00:00.000Z",'
        '"message":{"role":"user","content":"How is the harvest?"}}'
    )
    (folder / f"{SESSION}.jsonl").write_text(line + "\n")
    stores = (FurtherStoreSettings(f"claude:{root / 'claude'}", mode="write"),)

    async def show(client: httpx2.AsyncClient) -> None:
        page = await client.get(f"/sessions/{SESSION}")
        assert "How is the harvest?" in page.text

    return lambda: _with_client(root / "home", Settings(turn=TurnSettings(titles=False), stores=stores), show)


def query_to_hit(root: Path) -> Callable[[], object]:
    store = everlog.open_store(root, create=True)
    store.create().append("the harvest was good")
    store.search("harvest")

    def search() -> None:
        assert store.search("harvest").total == 1

    return search


def fact_to_recall(root: Path) -> Callable[[], object]:
    notes = root / "memory" / "main"
    notes.mkdir(parents=True)
    (notes / "garden.md").write_text("- The harvest is brought in by tractor\n")

    async def send(client: httpx2.AsyncClient) -> None:
        context = {"channel": "telegram", "chat_id": "7", "chat_type": "direct", "sender_id": "7"}
        answer = await client.post("/api/inbound", json={"context": context, "text": "Who brings in the harvest?"})
        assert answer.status_code == 200

    settings = Settings(turn=TurnSettings(titles=False), memory=MemorySettings(enabled=True))
    return lambda: _with_client(root, settings, send)


# What goes down is listed in the order of the calls, what comes up in the order in which they return.
WALKS: dict[str, tuple[Walk, str]] = {
    "Append to bytes": (append_to_bytes, "call"),
    "Inbound message to answer": (inbound_message_to_answer, "call"),
    "Foreign line to page": (foreign_line_to_page, "return"),
    "Query to hit": (query_to_hit, "call"),
    "Fact to recall": (fact_to_recall, "return"),
}


def test_all_five_walks_are_listed() -> None:
    assert list(_listed()) == list(WALKS)


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_passes_the_functions_that_the_page_lists_in_that_order(title: str, tmp_path: Path) -> None:
    walk, event = WALKS[title]
    functions = iter(_trace(walk(tmp_path), event))
    passed = [function for function in _listed()[title] if function in functions]
    assert passed == _listed()[title]
