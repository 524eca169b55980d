"""A server on loopback that speaks Anthropic's messages API, answers by a rule and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Json = dict[str, Any]
# The blocks of an answer to a request.
Reply = Callable[[Json], Sequence[Json]]


def text(words: str) -> Json:
    """Return a block of text."""
    return {"type": "text", "text": words}


def call(call_id: str, name: str, **arguments: Any) -> Json:
    """Return a block that calls a tool."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


class FakeModels:
    """Answer requests of the messages API, streamed or whole; the same reply to all until another is set."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.input_tokens = 10  # that an answer states: a program compacts by it
        self.error = 0  # status of an error instead of answers
        self.is_silent = False  # requests are kept and never answered
        self.requests: list[Json] = []  # bodies of requests to /v1/messages
        self.paths: list[str] = []  # of every request
        self._lock = threading.Lock()
        self._closed = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                fake.answer(self, body)

            def do_GET(self) -> None:
                fake.answer(self, {})

            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A program that ends closes its connections as it likes."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Return its address, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler, body: Json) -> None:
        """Answer one request."""
        path = handler.path.partition("?")[0]
        with self._lock:
            self.paths.append(path)
            if path == "/v1/messages":
                self.requests.append(body)
                number = len(self.requests)
        if path == "/v1/messages/count_tokens":
            _send(handler, 200, "application/json", json.dumps({"input_tokens": self.input_tokens}))
        elif path != "/v1/messages":
            error = {"type": "error", "error": {"type": "not_found_error", "message": path}}
            _send(handler, 404, "application/json", json.dumps(error))
        elif self.is_silent:
            handler.close_connection = True
            self._closed.wait()
        elif self.error:
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": "not today"}}
            _send(handler, self.error, "application/json", json.dumps(error))
        else:
            message = self._message(body, number)
            if body.get("stream"):
                _send(handler, 200, "text/event-stream", "".join(_events(message)))
            else:
                _send(handler, 200, "application/json", json.dumps(message))

    def _message(self, body: Json, number: int) -> Json:
        blocks = list(self.reply(body))
        is_call = any(block["type"] == "tool_use" for block in blocks)
        return {
            "id": f"msg_{number:04}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "m"),
            "content": blocks,
            "stop_reason": "tool_use" if is_call else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": self.input_tokens, "output_tokens": 7},
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _send(handler: BaseHTTPRequestHandler, status: int, kind: str, content: str) -> None:
    data = content.encode()
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _events(message: Json) -> list[str]:
    """Return a message as the events of a stream."""
    events = [_event("message_start", message={**message, "content": [], "stop_reason": None})]
    for index, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            start: Json = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            start = text("")
            delta = {"type": "text_delta", "text": block["text"]}
        events.append(_event("content_block_start", index=index, content_block=start))
        events.append(_event("content_block_delta", index=index, delta=delta))
        events.append(_event("content_block_stop", index=index))
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append(_event("message_delta", delta=end, usage=message["usage"]))
    events.append(_event("message_stop"))
    return events


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"
