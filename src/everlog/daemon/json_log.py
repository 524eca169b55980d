"""The daemon's own log: one JSON object per line on stderr, `{ts, level, event, …}`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from everlog.ids import timestamp
from everlog.log.line_codec import replace_surrogates
from everlog.wire.events import CompactEnd, CompactFailed, Error, HookFailed, MessageComplete, RunEvent

Level = Literal["info", "warning", "error"]


class _Output:
    """The destination of lines: stderr, or a list until they may be written."""

    held: list[str] | None = None

    def write(self, line: str) -> None:
        if self.held is not None:
            self.held.append(line)
            return
        try:
            print(line, file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass


_output = _Output()


@contextmanager
def hold_back() -> Iterator[None]:
    """Hold all lines back until the block ends, so that what it prints comes first."""
    _output.held = []
    try:
        yield
    finally:
        lines, _output.held = _output.held or [], None
        for line in lines:
            _output.write(line)


def log_event(event: str, *, level: Level = "info", **fields: object) -> None:
    """Write one line. Never raises: the reader of stderr may be gone."""
    row = {"ts": timestamp(time.time()), "level": level, "event": event, **fields}
    _output.write(msgspec.json.encode(replace_surrogates(row), enc_hook=str).decode())


def log_run_event(event: RunEvent) -> None:
    """Log the end of every turn, every compaction and every failed hook."""
    if isinstance(event, MessageComplete):
        log_event(
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
        ids = {"sessionId": event.session_id, "runId": event.run_id or None}
        log_event("turn_failed", level="warning", **ids, code=event.code, error=event.message)
    elif isinstance(event, CompactEnd):
        log_event(
            "session_compacted",
            sessionId=event.session_id,
            seq=event.seq,
            tokensFreed=event.tokens_freed,
            summariser=event.summariser,
        )
    elif isinstance(event, CompactFailed | HookFailed):
        problem = event.error if isinstance(event, CompactFailed) else event.problem
        kind = "compact_failed" if isinstance(event, CompactFailed) else "hook_failed"
        log_event(kind, level="warning", sessionId=event.session_id, error=problem)


class JsonLogHandler(logging.Handler):
    """A logging handler that writes what libraries log as JSON lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record as a JSON line."""
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        fields = {"logger": record.name, "message": record.getMessage()[:500]}
        if record.exc_info and record.exc_info[1] is not None:
            fields["problem"] = repr(record.exc_info[1])[:500]
        log_event("library", level=level, **fields)


def capture_loggers(*names: str) -> None:
    """Send warnings of these loggers, and of all without a handler, to this log."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [JsonLogHandler()]
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    root = logging.getLogger()
    if not root.handlers:  # providers, MCP, asyncio
        root.addHandler(JsonLogHandler())
        logging.captureWarnings(True)
