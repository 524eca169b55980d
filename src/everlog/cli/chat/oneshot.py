"""One prompt, one answer: for pipes and scripts. Ctrl+C stops the turn, and the program."""

from __future__ import annotations

import asyncio
import signal
import sys

import msgspec

from everlog import errors
from everlog.cli import output, transcript_output
from everlog.cli.chat.backend import Away, Partner
from everlog.errors import EverlogError, ProviderError, RunCancelledError, StoreFailedError
from everlog.log.line_codec import encode, seal
from everlog.model import Message
from everlog.wire.events import Error, MessageComplete, MessageStored


async def ask(partner: Partner, session: str, prompt: str, *, as_json: bool) -> None:
    """Say something and print the answer's text, or everything about it as JSON."""
    await partner.follow(session)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        run = (await partner.submit(session, prompt)).run_id
        stopping = asyncio.create_task(_stop(partner, session, run, stop))
        try:
            stored, end = await _ended(partner, run)
        finally:
            stopping.cancel()
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
            "messages": [_as_stored(one) for one in stored],
            "usage": end.usage,
        }
        output.put_json(answer)
    else:
        print(output.safe(end.content) if output.on_terminal(sys.stdout) else end.content)


async def _stop(partner: Partner, session: str, run: str, stop: asyncio.Event) -> None:
    """Stop the turn when the user says so; its end is then told like any other."""
    await stop.wait()
    # Whoever is impatient need not wait for it.
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    await partner.cancel(session, run)


async def _ended(partner: Partner, run: str) -> tuple[list[Message], MessageComplete]:
    """Wait for the end of a run; what it stored, and its answer."""
    stored: list[Message] = []
    while True:
        event = await partner.events.get()
        if isinstance(event, Away):
            raise StoreFailedError(
                f"the daemon has gone: {event.reason}", hint="your message is kept in the session"
            )
        if getattr(event, "run_id", None) != run:
            continue
        if isinstance(event, MessageStored):
            stored.append(event.message)
        elif isinstance(event, MessageComplete):
            return stored, event
        elif isinstance(event, Error):
            raise _error(event)


def _as_stored(message: Message) -> msgspec.Raw:
    """A message as its line in the log has it, without the crc."""
    _, body = encode(message)
    return msgspec.Raw(transcript_output.without_crc(seal(body, "message", message.seq)))


def _error(event: Error) -> EverlogError:
    """An error that was told, as one that is raised."""
    kind = getattr(errors, event.code, None)
    if not (isinstance(kind, type) and issubclass(kind, EverlogError)):
        kind = ProviderError
    return kind(event.message, hint=event.hint)
