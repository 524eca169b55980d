"""How many tokens a context has: a rough estimate, and the windows of models."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.errors import SettingsError
from holdfast.model import Image, Message, OtherBlock, Text, Thinking, Usage

WINDOW = 200_000
Counter = Callable[[str], int]


def estimate_text(text: str) -> int:
    return -(-len(text) // 4)


def estimate(message: Message, count: Counter = estimate_text) -> int:
    total = 4
    for block in message.content:
        if isinstance(block, Text):
            total += count(block.text)
        elif isinstance(block, Thinking):
            total += count(block.thinking)
        elif isinstance(block, Image):
            total += 1_200
        elif isinstance(block, OtherBlock):
            total += count(str(block.data))
        else:
            total += count(msgspec.json.encode(block).decode())
    return total


def counted(usage: Usage) -> int:
    return usage.total_tokens or (
        usage.input_tokens
        + usage.output_tokens
        + usage.cache_read_tokens
        + usage.cache_write_tokens
    )


def exact(name: str = "o200k_base") -> Counter:
    """An exact counter."""
    raise SettingsError(f"no exact counter {name!r} is installed")


_WINDOWS = (
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gemini", 1_000_000),
    ("claude", WINDOW),
)


def known_window(model: str) -> int | None:
    """The window of a model that we know."""
    return next((window for name, window in _WINDOWS if name in model.lower()), None)


def choose_window(model: str = "", *, setting: int = 0, provider: int | None = None) -> int:
    return setting or provider or known_window(model) or WINDOW
