"""The scripted model tells its text in words."""

from __future__ import annotations

import asyncio

from everlog.model import user
from everlog.ports import Delta, Provider, Request
from everlog.testing import ScriptedModel


def test_a_reply_is_told_in_words_that_make_up_the_text() -> None:
    told: list[Delta] = []
    model: Provider = ScriptedModel(" two  words ")
    reply = asyncio.run(model.complete(Request(messages=(user("x"),)), told.append))
    assert [delta.text for delta in told] == [" ", "two  ", "words "]
    assert "".join(delta.text for delta in told) == reply.text
