"""What a listing shows of Claude Code's transcripts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import Line, ListingScan, TranscriptInfo, split_lines
from everlog.model import Message
from tests.examples import examples
from tests.formats.claude_session import Session, read
from tests.formats.test_claude_tail import WHERE, agent_session, conversation, linear, steps


def glance(data: bytes, seen: ListingScan | None = None) -> ListingScan:
    return claude.scan_listing(seen or ListingScan(), split_lines(data), TranscriptInfo(""))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(steps, max_size=10), st.data())
def test_a_glance_in_pieces_equals_one_at_once(given_steps: list[tuple[str, Any]], data: st.DataObject) -> None:
    lines = [Line(0, line) for line in linear(given_steps)]
    cut = data.draw(st.integers(0, len(lines)))
    first = claude.scan_listing(ListingScan(), lines[:cut], TranscriptInfo(""))
    first = replace(first, state=json.loads(json.dumps(first.state)))
    assert claude.scan_listing(first, lines[cut:], TranscriptInfo("")) == claude.scan_listing(
        ListingScan(), lines, TranscriptInfo("")
    )
    found = claude.read_tail({}, lines, WHERE)
    seen = claude.scan_listing(ListingScan(), lines, TranscriptInfo(""))
    assert found is not None
    assert seen.messages == sum(isinstance(item, Message) for item in found.items)
    made = read(b"".join(line.data + b"\n" for line in lines))
    assert seen.title == made.metadata.get("name", "")
    assert seen.model == made.metadata.get("model", "")


def test_a_glance_shows_what_is_read() -> None:
    session = conversation()
    session.user(
        [
            {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "t2", "content": "two"},
            {"type": "text", "text": "and stop"},
        ]
    )
    session.answer("no model", cwd="/elsewhere")
    session.objects[-1]["message"]["model"] = "<synthetic>"
    session.user([])
    session.user({"odd": 1})
    session.user([7, None])
    data = session.data()
    made, seen = read(data), glance(data)
    messages = [item for item in made.items if isinstance(item, Message)]
    assert seen.messages == len(messages)
    assert (seen.title, seen.model, seen.cwd) == ("one", "claude-test", "/work")
    assert (seen.title, seen.model, seen.cwd) == tuple(made.metadata[key] for key in ("name", "model", "cwd"))
    assert seen.created == "2025-12-31T00:00:00.000Z"
    assert seen.last == messages[-1].timestamp
    assert (seen.agent, seen.sender, seen.skip) == ("", "", False)


@pytest.mark.parametrize(
    ("kind", "key"), [("summary", "summary"), ("last-prompt", "lastPrompt"), ("ai-title", "aiTitle")]
)
def test_titles_win_over_each_other_as_when_the_file_is_read(kind: str, key: str) -> None:
    session = Session()
    session.user("<command-name>/clear</command-name>")
    assert glance(session.data()).title == session.read().metadata["name"] == "/clear"
    session.user("the prompt " + "x" * 300)
    assert glance(session.data()).title == session.read().metadata["name"]
    session.meta(kind, **{key: "given"})
    assert glance(session.data()).title == session.read().metadata["name"] == "given"
    session.meta("custom-title", customTitle="mine")
    session.meta(kind, **{key: "later"})
    assert glance(session.data()).title == session.read().metadata["name"] == "mine"


def test_an_agent_s_transcript_is_not_listed_and_damage_costs_nothing() -> None:
    seen = glance(agent_session().data())
    assert seen.skip and seen.messages == 2
    first, second = conversation().data().splitlines(keepends=True)[2:4]
    for between in (b"not json\n", b'{"type":"x","sessionId":"y","a":"torn', b"\n", b"\xff\n"):
        assert glance(first + between + second).messages == 2
