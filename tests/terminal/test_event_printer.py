"""What of a turn is shown to somebody who has not heard all of it."""

from __future__ import annotations

from everlog.cli.chat.event_printer import REPEATED_NOTICE, EventPrinter
from everlog.cli.message_lines import MARKDOWN, Line, unfolded_lines
from everlog.model import Text, Thinking, assistant, user
from everlog.wire import events

RUN = {"session_id": "s", "run_id": "r"}


def teller() -> EventPrinter:
    return EventPrinter(lambda: 80)


def tell(to: EventPrinter, *events: events.RunEvent) -> list[Line]:
    return [one for event in events for one in to.on_event(event)]


def says(text: str) -> events.RunEvent:
    return events.StreamDelta(**RUN, text=text)


def test_what_is_heard_from_its_beginning_is_shown_as_it_comes() -> None:
    to = teller()
    assert tell(to, says("one\n\ntwo")) == [(MARKDOWN, "one")]
    stored = events.MessageStored(**RUN, seq=2, message=assistant("one\n\ntwo"))
    assert tell(to, stored) == [(MARKDOWN, "two")]


def test_a_message_that_is_joined_in_the_middle_is_shown_when_it_is_stored() -> None:
    to = teller()
    to.join_run("r")
    assert tell(to, says("wo\n\nthree")) == []
    assert [text for _, text in to.tail(80)] == ["three", "… running · Ctrl+C stops it"]
    stored = events.MessageStored(**RUN, seq=2, message=assistant("one two\n\nthree"))
    assert tell(to, stored) == [(MARKDOWN, "one two\n\nthree")]
    assert tell(to, says("the next\n\n")) == [(MARKDOWN, "the next")], "it is heard from its start"


def test_thinking_that_is_joined_in_the_middle_is_shown_with_its_message() -> None:
    to = teller()
    to.join_run("r")
    assert tell(to, events.ThinkingDelta(**RUN, text="nd that"), says("ye")) == []
    message = assistant([Thinking("this and that"), Text("yes")])
    shown = tell(to, events.MessageStored(**RUN, seq=2, message=message))
    assert shown == [("dim italic", "✻ thought: this and that"), (MARKDOWN, "yes")]


def test_a_call_is_one_line_that_tells_how_it_ended_and_fits_the_screen() -> None:
    to = EventPrinter(lambda: 40)
    begun = events.ToolStart(**RUN, tool_call_id="c", tool_name="fetch", args={"url": "http://localhost/" + "x" * 40})
    ended = events.ToolResult(
        **RUN, tool_call_id="c", tool_name="fetch", result="refused\nat 7", is_error=True, duration_ms=1_260
    )
    assert tell(to, begun) == []
    assert to.tail(40)[0] == ("yellow", "⚙ fetch http://localhost/xxxxxxxxxxx… …")
    assert tell(to, ended) == [("red", "⚙ fetch http://loca… ✗ 1.3 s: refused …")]
    (run, block), *_ = to.folded
    assert run == "r" and [text for _, text in unfolded_lines(block, 40)][-2:] == ["  refused", "  at 7"]
    missed = events.ToolResult(
        **RUN, tool_call_id="d", tool_name="clock", result="noon", is_error=False, duration_ms=70
    )
    assert tell(to, missed) == [("magenta", "⚙ clock ✓ 0.1 s")], "its beginning was not heard"


def test_a_turn_without_an_answer_says_why() -> None:
    failed = events.Error(**RUN, message="no key", code="ProviderDeniedError", hint="set one")
    assert tell(teller(), failed) == [("red", "✗ no key (set one)")]
    stopped = events.Error(**RUN, message="", code="RunCancelledError")
    assert tell(teller(), stopped) == [("yellow", "! stopped; the text so far is kept")]
    to = teller()
    to.on_queued("r", "later")
    assert tell(to, stopped) == [("yellow", "! cancelled")]


def test_a_turn_that_was_joined_before_it_began_is_heard_from_its_beginning() -> None:
    to = teller()
    to.join_run("r")
    tell(to, events.RunStart(**RUN, model="m", started_at=""))
    assert tell(to, says("one\n\n")) == [(MARKDOWN, "one")]


def test_what_was_shown_in_part_is_shown_again_with_a_word_of_why() -> None:
    to = teller()
    assert tell(to, says("one\n\ntwo")) == [(MARKDOWN, "one")]
    assert list(to.on_disconnect()) == [(MARKDOWN, "two")]
    to.join_run("r")
    assert tell(to, says("ree\n\nfour")) == []
    stored = events.MessageStored(**RUN, seq=2, message=assistant("one\n\ntwo three\n\nfour"))
    assert tell(to, stored) == [("dim", REPEATED_NOTICE), (MARKDOWN, "one\n\ntwo three\n\nfour")]


def test_a_message_out_of_the_log_does_not_stand_for_the_one_that_is_being_made() -> None:
    to = teller()
    to.join_run("r")
    earlier = events.MessageStored(session_id="s", seq=2, message=assistant("earlier"))
    assert tell(to, earlier) == [(MARKDOWN, "earlier")]
    assert tell(to, says("iddle\n\nend")) == []
    stored = events.MessageStored(**RUN, seq=4, message=assistant("middle\n\nend"))
    assert tell(to, stored) == [(MARKDOWN, "middle\n\nend")]


def test_the_next_turn_knows_nothing_of_an_answer_that_was_never_stored() -> None:
    to = teller()
    tell(to, says("half an ans"))
    list(to.on_disconnect())
    asked = events.MessageStored(session_id="s", run_id="n", seq=3, message=user("again?"))
    answered = events.MessageStored(session_id="s", run_id="n", seq=4, message=assistant("yes"))
    assert tell(to, asked, answered) == [("bold", "› again?"), (MARKDOWN, "yes")]
