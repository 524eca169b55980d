"""What a listing says of a session that a forked child writes to, after its parent closed the index.

    python -m tests.crash.forked_index ROOT [--twin]

SQLite remembers in memory which locks a process has, and a forked child inherits that memory but
not the locks. Whoever uses SQLite in a child without minding this writes to a file that the parent
deletes when it closes the last connection it knows of. Prints what is listed in the end: 2 2 is
right, the messages of the session and what the listing says of them.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import everlog


class Relay:
    """Two processes that do things in turns."""

    def __init__(self) -> None:
        self._mine, self._theirs = os.pipe(), os.pipe()

    def fork(self) -> bool:
        """True in the child."""
        child = os.fork() == 0
        if child:
            self._mine, self._theirs = self._theirs, self._mine
        return child

    def hand_over(self, word: str = "-") -> None:
        """It is the other's turn."""
        os.write(self._mine[1], word.encode())

    def await_turn(self) -> str:
        """Wait for the other; what it says."""
        return os.read(self._theirs[0], 100).decode()


def ours(root: Path) -> str:
    """everlog."""
    store = everlog.open_store(root, create=True)
    store.create().append(everlog.user("the index is open"))
    store.list()
    relay = Relay()
    if relay.fork():
        store.list()  # the child has an index of its own now
        relay.hand_over()
        relay.await_turn()
        session = store.create()
        session.append(everlog.user("one"))
        relay.hand_over(session.id)
        relay.await_turn()
        session.append(everlog.user("two"))
        relay.hand_over()
        relay.await_turn()
        os._exit(0)
    relay.await_turn()
    store.close()
    relay.hand_over()
    name = relay.await_turn()
    store.list()
    relay.hand_over()
    relay.await_turn()
    listed = {row.id: row.metadata.message_count for row in store.list()}
    said = len(store.session(name).messages())
    relay.hand_over()
    return f"{said} {listed.get(name)}"


def twin(root: Path) -> str:
    """SQLite in parent and child, each with its own connection; a table in place of messages."""
    root.mkdir()

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(root / "index.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE IF NOT EXISTS said (text TEXT)")
        return connection

    parent = connect()
    relay = Relay()
    if relay.fork():
        child = connect()
        child.execute("SELECT count(*) FROM said").fetchall()
        relay.hand_over()
        relay.await_turn()
        for text in ("one", "two"):
            child.execute("INSERT INTO said VALUES (?)", (text,))
        relay.hand_over()
        relay.await_turn()
        os._exit(0)
    relay.await_turn()
    parent.close()
    relay.hand_over()
    relay.await_turn()
    (there,) = connect().execute("SELECT count(*) FROM said").fetchone()
    relay.hand_over()
    return f"2 {there}"


def main() -> None:
    """See the top."""
    tell: Callable[[Path], str] = twin if "--twin" in sys.argv else ours
    print(tell(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
