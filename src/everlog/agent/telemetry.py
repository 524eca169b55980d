"""Spans for OpenTelemetry, where its package is installed; otherwise nothing.

Names and attributes are those of its conventions for generative AI. What spans cost and where
they go is decided by whoever configures the SDK; without that they go nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from everlog.model import Usage

_ATTRIBUTES = {
    "operation": "gen_ai.operation.name",
    "conversation": "gen_ai.conversation.id",
    "agent": "gen_ai.agent.name",
    "model": "gen_ai.request.model",
    "tool": "gen_ai.tool.name",
}


class Traced:
    """A span under way, or the lack of one."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def used(self, usage: Usage) -> None:
        """What the model calls within it took."""
        if self._span is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)


@contextmanager
def span(name: str, **facts: str) -> Iterator[Traced]:
    """A span around some work; an exception that leaves it is recorded."""
    tracer = _tracer()
    if tracer is None:
        yield Traced()
        return
    attributes = {_ATTRIBUTES[key]: value for key, value in facts.items() if value}
    with tracer.start_as_current_span(name, attributes=attributes) as started:
        yield Traced(started)


@cache
def _tracer() -> Any:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    return trace.get_tracer("everlog")
