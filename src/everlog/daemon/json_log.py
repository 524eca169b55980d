"""The daemon's own log: one JSON object per line on stderr, `{ts, level, event, …}`."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

from everlog.ids import timestamp
from everlog.log.line_codec import clean
from everlog.wire.events import (
    CompactEnd,
    CompactFailed,
    Error,
    HookFailed,
    MessageComplete,
    RunEvent,
)

Level = Literal["info", "warning", "error"]


def note(event: str, *, level: Level = "info", **facts: object) -> None:
    """Write one line. It never raises: whoever reads stderr may be gone."""
    row = {"ts": timestamp(time.time()), "level": level, "event": event, **facts}
    text = msgspec.json.encode(clean(row), enc_hook=str).decode()
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def told(event: RunEvent) -> None:
    """Write a line for the end of every turn, and for what changes a session by itself."""
    if isinstance(event, MessageComplete):
        note(
            "turn_end",
            sessionId=event.session_id,
            runId=event.run_id,
            model=event.model,
            inputTokens=event.usage.input_tokens,
            outputTokens=event.usage.output_tokens,
            totalTokens=event.usage.total_tokens,
            cost=event.usage.cost,
            durationMs=event.duration_ms,
            toolCallCount=event.tool_calls,
            stop=event.stop,
        )
    elif isinstance(event, Error):
        facts = {"sessionId": event.session_id, "runId": event.run_id or None}
        note("turn_failed", level="warning", **facts, code=event.code, error=event.message)
    elif isinstance(event, CompactEnd):
        note(
            "session_compacted",
            sessionId=event.session_id,
            seq=event.seq,
            tokensFreed=event.tokens_freed,
            summariser=event.summariser,
        )
    elif isinstance(event, CompactFailed | HookFailed):
        problem = event.error if isinstance(event, CompactFailed) else event.problem
        kind = "compact_failed" if isinstance(event, CompactFailed) else "hook_failed"
        note(kind, level="warning", sessionId=event.session_id, error=problem)


class Lines(logging.Handler):
    """What libraries log, in the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        facts = {"logger": record.name, "message": record.getMessage()[:500]}
        if record.exc_info and record.exc_info[1] is not None:
            facts["problem"] = repr(record.exc_info[1])[:500]
        note("library", level=level, **facts)


def take_over(*names: str) -> None:
    """Let these loggers, and all that nobody has claimed, write here, from warnings on."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [Lines()]
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    root = logging.getLogger()
    if not root.handlers:  # nobody else wants the rest: those of providers, of MCP, of asyncio
        root.addHandler(Lines())
        logging.captureWarnings(True)
