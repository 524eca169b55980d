"""A Python client of the daemon, with typed calls and the errors of `everlog.errors`.

    with Client.of(Path("~/.everlog").expanduser()) as client:
        session = client.create(name="Fix tests")
        for event in client.stream(session.id, "hello"):
            ...

It imports neither the engine nor a store.
"""

from everlog.client.http_client import Client

__all__ = ["Client"]
