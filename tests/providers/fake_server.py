"""A server on loopback that answers as it was told to and remembers what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

Json = dict[str, Any]


class Sent(NamedTuple):
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: Json


class Answer(NamedTuple):
    """A response: JSON, or pieces of a stream, which may be cut off."""

    status: int = 200
    body: Json | Iterable[str] = ()
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    cut: bool = False


class FakeServer:
    """Gives its answers in order."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[Sent] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {key.lower(): value for key, value in self.headers.items()}
                fake.sent.append(Sent(self.path, headers, body))
                fake.respond(self, fake.answers.pop(0))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that goes away in the middle is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @staticmethod
    def respond(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        """Send one answer, in chunks if it is a stream, and close."""
        handler.close_connection = True
        handler.send_response(answer.status)
        for key, value in {**answer.headers, "connection": "close"}.items():
            handler.send_header(key, value)
        if isinstance(answer.body, dict):
            data = json.dumps(answer.body).encode()
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)
            return
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for piece in answer.body:
            data = piece.encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if not answer.cut:
            handler.wfile.write(b"0\r\n\r\n")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


# --- OpenAI's chat completions ---------------------------------------------------------------


def chunk(delta: Json | None = None, finish: str | None = None, usage: Json | None = None) -> str:
    """One event of a stream of chat completions."""
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    data = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": usage,
    }
    return f"data: {json.dumps(data)}\n\n"


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 60},
}


def chat(*words: str, finish: str = "stop") -> Answer:
    """An answer of words."""
    deltas = [chunk({"role": "assistant", "content": word}) for word in words]
    return Answer(body=[*deltas, chunk(finish=finish), chunk(usage=USAGE), "data: [DONE]\n\n"])


def refusal(status: int, message: str, **headers: str) -> Answer:
    """An error as OpenAI words it."""
    error = {"message": message, "type": "some_error", "code": None}
    return Answer(status, {"error": error}, {key.replace("_", "-"): value for key, value in headers.items()})


# --- Anthropic's messages --------------------------------------------------------------------


def event(kind: str, **data: Any) -> str:
    """One event of a stream of Anthropic's, or of OpenAI's Responses."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


def claude(*blocks: tuple[Json, list[Json]], stop: str = "end_turn", cut: bool = False) -> Answer:
    """An answer of blocks, each with its deltas."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30, "output_tokens": 1}
    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events = [event("message_start", message=message)]
    for index, (block, deltas) in enumerate(blocks):
        events.append(event("content_block_start", index=index, content_block=block))
        events += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        events.append(event("content_block_stop", index=index))
    if not cut:
        delta = {"stop_reason": stop, "stop_sequence": None}
        events.append(event("message_delta", delta=delta, usage={"output_tokens": 7}))
        events.append(event("message_stop"))
    return Answer(body=events)
