"""A server that is made to refuse or to withhold what it otherwise does, and set right again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.stores.postgres.server import Server
from tests.stores.postgres.workers import until

STANDBYS = "synchronous_standby_names"
WAITS = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"


def change(server: Server, setting: str, value: str) -> None:
    """Change a setting for everybody, and wait until it is so."""
    with server.connect() as other:
        other.execute("SET default_transaction_read_only = off")
        other.execute("SET synchronous_commit = local")
        other.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
        other.execute("SELECT pg_reload_conf()")

    def is_so() -> bool:
        with server.connect() as another:
            return another.execute(f"SHOW {setting}").fetchone() == (value,)

    until(is_so, f"{setting} is {value}")


@contextmanager
def unacknowledged(server: Server) -> Iterator[None]:
    """Nothing is acknowledged meanwhile: a standby that must have it is not there."""
    change(server, STANDBYS, "absent")
    until(lambda: _withholds(server), "a commit that waits for the standby")
    try:
        yield
    finally:
        change(server, STANDBYS, "")
        until(lambda: not _withholds(server), "a commit that waits for nobody")


def _withholds(server: Server) -> bool:
    """Whether a commit waits for a standby.

    What a new connection is shown of the setting does not tell it: commits go by what another
    process of the server, its checkpointer, has made of it, and that hears of it when it does.
    """
    with closing(server.connect()) as other, server.connect() as looking:
        commit, pid = other.pgconn, other.info.backend_pid
        commit.send_query(b"SELECT pg_logical_emit_message(true, 'everlog', 'a commit')")
        while commit.is_busy():
            if looking.execute(WAITS, [pid]).fetchone() == ("SyncRep",):
                looking.execute("SELECT pg_terminate_backend(%s)", [pid])
                return True
            commit.consume_input()
    return False
