"""The ports of what a turn asks: models and tools. They are asynchronous and keep nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from everlog.model import Content, Message, Usage


class Tool(msgspec.Struct, frozen=True):
    """A tool as a model is told of it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}  # JSON Schema of its arguments
    reads: bool = False  # changes nothing anywhere: scheduled runs may use it unasked


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model."""

    messages: tuple[Message, ...]
    system: str = ""
    model: str = ""
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    purpose: Literal["answer", "summary", "title"] = "answer"  # what the reply will be used for


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of an answer that is still being made."""

    text: str
    thinking: bool = False


# Is called in the order of the pieces, must return at once and must not raise.
DeltaCallback = Callable[[Delta], None]


def ignore_delta(delta: Delta) -> None:
    """For an answer that nobody watches being made."""


class Provider(Protocol):
    """Completes a context."""

    async def complete(self, request: Request, on_delta: DeltaCallback = ignore_delta) -> Message:
        """The model's answer, with the model's name and, where it is known, its usage and cost.

        `told` gets the answer's text piece by piece while it is made. Raises ContextOverflowError if
        the context is too large for the model, ProviderUnavailableError if the same call may succeed
        later, ProviderDeniedError, ProviderRefusedError, or ProviderError for everything else that goes
        wrong. Calls once and does not retry. Nothing of the request is kept or changed.
        """
        ...

    def window(self, model: str) -> int | None:
        """The model's limit as the provider states it; None if it does not."""
        ...


class Toolset(Protocol):
    """Tools that live elsewhere, such as those of an MCP server."""

    name: str

    async def tools(self) -> Sequence[Tool]:
        """What it offers. ProviderUnavailableError if it cannot be reached."""
        ...

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Run one of its tools. A tool that fails answers so; a server that does, raises."""
        ...

    async def close(self) -> None:
        """Give back its connection or process."""
        ...


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a tool gave back."""

    content: Content  # text or blocks
    is_error: bool = False
    usage: Usage | None = None  # of models that it called
