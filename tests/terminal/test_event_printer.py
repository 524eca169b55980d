"""What of a turn is shown to somebody who has not heard all of it."""

from __future__ import annotations

from everlog.cli.chat.event_printer import REPEATED_NOTICE, EventPrinter, Line, Markdown, OutputItem
from everlog.model import Text, Thinking, assistant, user
from everlog.wire import events

RUN = {"session_id": "s", "run_id": "r"}


def teller() -> EventPrinter:
    return EventPrinter(lambda: 80)


def tell(to: EventPrinter, *events: events.RunEvent) -> list[OutputItem]:
    return [one for event in events for one in to.on_event(event)]


def says(text: str) -> events.RunEvent:
    return events.StreamDelta(**RUN, text=text)


def test_what_is_heard_from_its_beginning_is_shown_as_it_comes() -> None:
    to = teller()
    assert tell(to, says("one\n\ntwo")) == [Markdown("one")]
    stored = events.MessageStored(**RUN, seq=2, message=assistant("one\n\ntwo"))
    assert tell(to, stored) == [Markdown("two")]


def test_a_message_that_is_joined_in_the_middle_is_shown_when_it_is_stored() -> None:
    to = teller()
    to.join_run("r")
    assert tell(to, says("wo\n\nthree")) == []
    assert [one.text for one in to.tail(80)] == ["three", "… running · Ctrl+C stops it"]
    stored = events.MessageStored(**RUN, seq=2, message=assistant("one two\n\nthree"))
    assert tell(to, stored) == [Markdown("one two\n\nthree")]
    assert tell(to, says("the next\n\n")) == [Markdown("the next")], "it is heard from its start"


def test_thinking_that_is_joined_in_the_middle_is_shown_with_its_message() -> None:
    to = teller()
    to.join_run("r")
    assert tell(to, events.ThinkingDelta(**RUN, text="nd that"), says("ye")) == []
    message = assistant([Thinking("this and that"), Text("yes")])
    shown = tell(to, events.MessageStored(**RUN, seq=2, message=message))
    assert shown == [Line("✻ thought: this and that", "dim italic"), Markdown("yes")]


def test_a_turn_that_was_joined_before_it_began_is_heard_from_its_beginning() -> None:
    to = teller()
    to.join_run("r")
    tell(to, events.RunStart(**RUN, model="m", started_at=""))
    assert tell(to, says("one\n\n")) == [Markdown("one")]


def test_what_was_shown_in_part_is_shown_again_with_a_word_of_why() -> None:
    to = teller()
    assert tell(to, says("one\n\ntwo")) == [Markdown("one")]
    assert list(to.on_disconnect()) == [Markdown("two")]
    to.join_run("r")
    assert tell(to, says("ree\n\nfour")) == []
    stored = events.MessageStored(**RUN, seq=2, message=assistant("one\n\ntwo three\n\nfour"))
    assert tell(to, stored) == [Line(REPEATED_NOTICE), Markdown("one\n\ntwo three\n\nfour")]


def test_a_message_out_of_the_log_does_not_stand_for_the_one_that_is_being_made() -> None:
    to = teller()
    to.join_run("r")
    earlier = events.MessageStored(session_id="s", seq=2, message=assistant("earlier"))
    assert tell(to, earlier) == [Markdown("earlier")]
    assert tell(to, says("iddle\n\nend")) == []
    stored = events.MessageStored(**RUN, seq=4, message=assistant("middle\n\nend"))
    assert tell(to, stored) == [Markdown("middle\n\nend")]


def test_the_next_turn_knows_nothing_of_an_answer_that_was_never_stored() -> None:
    to = teller()
    tell(to, says("half an ans"))
    list(to.on_disconnect())
    asked = events.MessageStored(session_id="s", run_id="n", seq=3, message=user("again?"))
    answered = events.MessageStored(session_id="s", run_id="n", seq=4, message=assistant("yes"))
    assert tell(to, asked, answered) == [Line("› again?", "bold"), Markdown("yes")]
