"""Spans: what OpenTelemetry is told of a turn, where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import everlog

exported = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exported))
trace.set_tracer_provider(provider)
with everlog.open_store("memory:") as store:
    session = store.create()
    agent = everlog.Agent(store, model="offline", tools={"now": lambda: "5"})
    asyncio.run(agent.run('!call now {}', session=session))
    print(json.dumps({"session": session.id, "spans": [
        {"name": one.name, "parent": one.parent.span_id if one.parent else None,
         "id": one.context.span_id, "attributes": dict(one.attributes)}
        for one in exported.get_finished_spans()]}))
"""


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    return done.stdout


def test_a_turn_its_calls_and_its_tools_are_spans_of_one_conversation() -> None:
    pytest.importorskip("opentelemetry.sdk")
    told = json.loads(_run(PROGRAM))
    spans = told["spans"]
    names = [one["name"] for one in spans]
    assert names == ["chat offline", "execute_tool now", "chat offline", "invoke_agent main"]
    turn = spans[-1]
    assert all(one["parent"] == turn["id"] for one in spans[:-1]) and turn["parent"] is None
    for one in spans:
        assert one["attributes"]["gen_ai.conversation.id"] == told["session"]
    assert turn["attributes"]["gen_ai.operation.name"] == "invoke_agent"
    assert turn["attributes"]["gen_ai.usage.input_tokens"] > 0
    assert spans[1]["attributes"]["gen_ai.tool.name"] == "now"


def test_without_the_package_nothing_is_missing() -> None:
    hidden = "import sys; sys.modules['opentelemetry'] = None\n"
    program = """
import asyncio, everlog
with everlog.open_store("memory:") as store:
    agent = everlog.Agent(store, model="offline")
    print(asyncio.run(agent.run("!say fine", session=store.create())).text)
"""
    assert _run(hidden + program) == "fine\n"
