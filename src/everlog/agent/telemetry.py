"""OpenTelemetry spans, if its package is installed; otherwise nothing.

Names and attributes follow its semantic conventions for generative AI. The application that
configures the SDK decides about sampling and export; without configuration spans go nowhere.
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


class ActiveSpan:
    """The span of a block, or a placeholder without OpenTelemetry."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def record_usage(self, usage: Usage) -> None:
        """Record the tokens that the model calls within the span used."""
        if self._span is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)


@contextmanager
def span(name: str, **fields: str) -> Iterator[ActiveSpan]:
    """Run a block within a span; an exception that leaves the block is recorded in it."""
    tracer = _tracer()
    if tracer is None:
        yield ActiveSpan()
        return
    attributes = {_ATTRIBUTES[key]: value for key, value in fields.items() if value}
    with tracer.start_as_current_span(name, attributes=attributes) as otel_span:
        yield ActiveSpan(otel_span)


@cache
def _tracer() -> Any:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    return trace.get_tracer("everlog")
