"""A wire between a store and its server that can be cut between a question and its answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class Proxy:
    """Passes bytes on; `swallow` lets the next question through and not its answer."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._swallowing = threading.Event()
        self.swallowed = threading.Event()
        self._word, self._for_good = b"", False
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, word: bytes, *, for_good: bool = False) -> None:
        """Cut the connection on which the server answers to something with this word in it.

        `for_good`: and before anybody notices, the way to the server.
        """
        self._word, self._for_good = word, for_good
        self.swallowed.clear()
        self._swallowing.set()

    def cut(self) -> None:
        """Cut all connections now."""
        ends, self._ends = self._ends, []
        for end in ends:
            _shut(end)

    def close(self) -> None:
        """Take no more connections, and cut those that are there."""
        _shut(self._listening)
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is gone, perhaps not for ever
                _shut(near)
                continue
            self._ends += [near, far]
            asked = threading.Event()  # what must not be answered was asked here
            for source, target, is_question in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=(source, target, asked, is_question), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, asked: threading.Event, question: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if question and self._swallowing.is_set() and self._word in data:
                    self._swallowing.clear()
                    asked.set()
                if not question and asked.is_set():
                    self.swallowed.set()
                    if self._for_good:
                        self.close()
                    break  # the server has done it, and nobody will hear of it
                target.sendall(data)
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
