"""The types that cross a process boundary: both sides encode and decode by the same ones."""

from __future__ import annotations

from itertools import chain

import msgspec
import pytest

from everlog import errors
from everlog.wire.error_table import ERROR_STATUSES, STATUS, decode_error, decode_error_event, status_of
from everlog.wire.events import Error, ListingChanged, Subscribed, Unsubscribed, decode_event
from everlog.wire.requests import STREAM_REQUESTS, Cancel, SendMessage, StreamRequest, Subscribe, Unsubscribe, Watch


@pytest.mark.parametrize(
    ("request_", "tag"),
    [
        (Watch(), "watch"),
        (SendMessage(session_id="s", content="hello"), "send_message"),
        (Cancel(session_id="s", run_id="r"), "cancel"),
        (Subscribe(session_id="s", after=3), "subscribe"),
        (Unsubscribe(session_id="s"), "unsubscribe"),
    ],
)
def test_a_message_to_the_event_stream_is_read_as_it_was_written(request_: StreamRequest, tag: str) -> None:
    payload = msgspec.json.decode(msgspec.json.encode(request_))
    assert payload["type"] == tag
    assert msgspec.convert(payload, STREAM_REQUESTS[tag]) == request_


def test_what_the_event_stream_tells_of_itself_is_no_event_of_a_run() -> None:
    for notice in (Subscribed(session_id="s", seq=1), Unsubscribed(session_id="s"), ListingChanged(session_id="")):
        assert decode_event(msgspec.to_builtins(notice)) is None


def test_every_error_has_one_status_and_every_status_its_words() -> None:
    classes = list(chain.from_iterable(row.classes for row in ERROR_STATUSES.values()))
    assert len(classes) == len(set(classes)) == len(STATUS) - 1
    assert all(row.description.endswith(".") for row in ERROR_STATUSES.values())


def test_an_error_of_a_subclass_has_the_status_of_the_nearest_base() -> None:
    class OddError(errors.QueueFullError):
        """One that the table does not name."""

    assert status_of(OddError("x")) == 429
    assert status_of(errors.EverlogError("x")) == 500


@pytest.mark.parametrize(("status", "row"), ERROR_STATUSES.items())
def test_an_answer_without_a_code_is_decoded_by_its_status(status: int, row: object) -> None:
    back = decode_error(status, b'{"error":"no","details":["/a: b"]}')
    assert type(back) is ERROR_STATUSES[status].fallback
    assert (back.message, back.facts) == ("no: /a: b", {"status": status})


def test_an_error_event_becomes_the_error_that_it_names() -> None:
    event = Error(session_id="s", message="no", code="SessionBusyError", hint="wait")
    back = decode_error_event(event, errors.ProviderError)
    assert type(back) is errors.SessionBusyError and (back.message, back.hint) == ("no", "wait")
    unknown = Error(session_id="s", message="no", code="FromTheFutureError")
    assert type(decode_error_event(unknown, errors.ProviderError)) is errors.ProviderError
