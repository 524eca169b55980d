"""A client of the daemon, for Python: every call typed, every error one of ours.

    with Client.of(Path("~/.everlog").expanduser()) as client:
        made = client.create(name="Fix tests")
        for event in client.stream(made.id, "hello"):
            ...

It loads neither the engine nor a store.
"""

from everlog.client.http_client import Client

__all__ = ["Client"]
