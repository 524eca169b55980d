"""The result of a turn."""

from __future__ import annotations

import msgspec

from everlog.model import Message, Usage
from everlog.wire.events import MessageComplete


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a turn."""

    run_id: str
    session_id: str
    reply: Message
    messages: tuple[Message, ...]  # all that it stored, the input first if it had one
    usage: Usage
    duration_ms: int
    tool_calls: int
    stop: str  # "end", or "max_steps" if the model wanted to continue

    def event(self) -> MessageComplete:
        """Return the event that reports the end of the turn."""
        return MessageComplete(
            session_id=self.session_id,
            run_id=self.run_id,
            seq=self.reply.seq,
            content=self.reply.text,
            model=self.reply.model or "",
            usage=self.usage,
            duration_ms=self.duration_ms,
            tool_calls=self.tool_calls,
            stop=self.stop,
        )
