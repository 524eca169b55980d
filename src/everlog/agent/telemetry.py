"""OpenTelemetry spans, if its package is installed; otherwise nothing.

Names and attributes follow its semantic conventions for generative AI. The application that
configures the SDK decides about sampling and export; without configuration spans go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@contextmanager
def span(name: str, **fields: str) -> Iterator[Callable[[Usage], None]]:
    """Run a block within a span; an exception that leaves the block is recorded in it.

    Yields a function that records the tokens which the model calls within the span used.
    """
    tracer = _tracer()
    if tracer is None:
        yield lambda usage: None
        return
    attributes = {_ATTRIBUTES[key]: value for key, value in fields.items() if value}
    with tracer.start_as_current_span(name, attributes=attributes) as otel_span:

        def record_usage(usage: Usage) -> None:
            otel_span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            otel_span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)

        yield record_usage


@cache
def _tracer() -> Any:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    return trace.get_tracer("everlog")
