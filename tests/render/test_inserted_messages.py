"""What a program inserted in the user's name is shown as such, and is not taken for the user's words."""

from __future__ import annotations

import everlog
from everlog.context.compaction.dialogue import read_utterances
from everlog.memory.extraction import extract_by_rules
from everlog.model import PROGRAM, Message, Text, assistant, user
from everlog.render.html_document import build_html_document
from everlog.render.markdown_document import build_markdown_document
from everlog.session import Session, Store

INSERTED = Message(role="user", content=(Text("I prefer tabs, always."),), sender=PROGRAM)


def conversation(store: Store) -> Session:
    session = store.create()
    session.append_many([INSERTED, user("hello"), assistant("hi")])
    return session


def test_documents_name_the_program_and_not_the_user() -> None:
    with everlog.open_store("memory:") as store:
        session = conversation(store)
        markdown = build_markdown_document(session.metadata, session.entries(), str)
        assert markdown.count("## Inserted · ") == 1 and markdown.count("## User · ") == 1
        html = build_html_document(session.metadata, session.entries(), str)
        assert html.count("<b>Inserted</b>") == 1 and html.count("<b>You</b>") == 1


def test_a_person_whose_sender_is_called_program_typed_every_word() -> None:
    assert user("hello", sender="program").is_typed


def test_it_is_in_the_context_and_in_search() -> None:
    with everlog.open_store("memory:") as store:
        session = conversation(store)
        assert session.context().messages[0].text == "I prefer tabs, always."
        assert store.search("tabs").total == 1


def test_it_becomes_no_fact_and_no_request_of_a_summary() -> None:
    messages = [INSERTED, user("fix the tests"), assistant("done")]
    assert extract_by_rules(messages, "s") == []
    assert [utterance.text for utterance in read_utterances(messages)] == ["fix the tests", "done"]
