"""The ports of models and tools. They are asynchronous and keep nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from everlog.model import Content, Message, Usage

FileAccess = Literal["read", "write"]


class ToolSpec(msgspec.Struct, frozen=True):
    """Describes a tool to a model."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}  # JSON Schema of its arguments
    reads: bool = False  # changes nothing anywhere: scheduled runs may use it
    file: FileAccess | None = None  # what it does with the file at its `path`, for the lists in summaries


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model."""

    messages: tuple[Message, ...]
    system: str = ""
    model: str = ""
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    purpose: Literal["answer", "summary", "title"] = "answer"  # what the reply will be used for


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A chunk of an answer that is being streamed."""

    text: str
    thinking: bool = False


# Called in the order of the chunks; must return at once and must not raise.
DeltaCallback = Callable[[Delta], None]


def ignore_delta(delta: Delta) -> None:
    """Drop a chunk: nobody watches the answer."""


class Provider(Protocol):
    """Completes a context."""

    async def complete(self, request: Request, on_delta: DeltaCallback = ignore_delta) -> Message:
        """Return the model's answer, with the model's name and, if known, usage and cost.

        `on_delta` is called with chunks of the answer as they arrive. Raises ContextOverflowError
        if the context is too large for the model, ProviderUnavailableError if the same call may
        succeed later, ProviderDeniedError, ProviderRefusedError, or ProviderError for every other
        failure. Calls once and does not retry. Keeps and changes nothing of the request.
        """
        ...

    def window(self, model: str) -> int | None:
        """Return the context window of a model; None if the provider does not state it."""
        ...


class Toolset(Protocol):
    """Tools that run elsewhere, such as those of an MCP server."""

    name: str

    async def tools(self) -> Sequence[ToolSpec]:
        """Return the tools it offers. ProviderUnavailableError if it cannot be reached."""
        ...

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        """Run a tool. A failing tool returns an error output; a failing server raises."""
        ...

    async def close(self) -> None:
        """Close its connection or process."""
        ...


class ToolOutput(msgspec.Struct, frozen=True):
    """The output of a tool call."""

    content: Content  # text or blocks
    is_error: bool = False
    usage: Usage | None = None  # of the models that it called
