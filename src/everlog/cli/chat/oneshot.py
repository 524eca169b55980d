"""A single prompt and its answer, for pipes and scripts. Ctrl+C stops the turn and the program."""

from __future__ import annotations

import asyncio
import signal
import sys

from everlog.cli import output
from everlog.cli.chat.backend import Backend, Disconnected
from everlog.errors import (
    ProviderDeniedError,
    ProviderError,
    ProviderRefusedError,
    RunCancelledError,
    SettingsError,
    StoreFailedError,
)
from everlog.model import Message
from everlog.wire.error_table import decode_error_event
from everlog.wire.events import Error, MessageComplete, MessageStored
from everlog.wire.responses import record_objects


async def ask(backend: Backend, session: str, prompt: str, *, as_json: bool, is_made: bool = False) -> None:
    """Send a prompt and print the answer's text, or the whole turn as JSON.

    A session that `is_made` for the prompt is deleted again if the provider refuses the turn.
    """
    await backend.follow(session)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        run = (await backend.submit(session, prompt)).run_id
        cancel_task = asyncio.create_task(_cancel_on_signal(backend, session, run, stop))
        try:
            stored, end = await _wait_for_end(backend, run)
        finally:
            cancel_task.cancel()
    except (ProviderDeniedError, ProviderRefusedError, SettingsError):
        if is_made and (await (await backend.store.session(session)).metadata()).message_count <= 1:
            await backend.discard(session)
        raise
    except RunCancelledError:
        if stop.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    if as_json:
        answer = {
            "sessionId": session,
            "runId": run,
            "reply": end.content,
            "messages": record_objects(stored),
            "usage": end.usage,
        }
        output.print_json(answer)
    else:
        print(output.safe(end.content) if output.is_terminal(sys.stdout) else end.content)


async def _cancel_on_signal(backend: Backend, session: str, run: str, stop: asyncio.Event) -> None:
    """Cancel the turn on Ctrl+C; its end then arrives like any other event."""
    await stop.wait()
    # A second Ctrl+C ends the program at once.
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    await backend.cancel(session, run)


async def _wait_for_end(backend: Backend, run: str) -> tuple[list[Message], MessageComplete]:
    """Wait for the end of a run; return the messages it stored, and its answer."""
    stored: list[Message] = []
    while True:
        event = await backend.events.get()
        if isinstance(event, Disconnected):
            raise StoreFailedError(f"the daemon is no longer reachable: {event.reason}", hint="your message is stored")
        if getattr(event, "run_id", None) != run:
            continue
        if isinstance(event, MessageStored):
            stored.append(event.message)
        elif isinstance(event, MessageComplete):
            return stored, event
        elif isinstance(event, Error):
            raise decode_error_event(event, ProviderError)
