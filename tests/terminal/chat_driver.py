"""What tests of the conversation have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from everlog.session import Session, Store
from tests.providers.fake_server import FakeServer
from tests.terminal.conftest import CONFIG
from tests.terminal.terminal import Terminal

Start = Callable[..., Terminal]
PROMPT = "›"


def begin(terminal: Start, *arguments: str, **how: object) -> Terminal:
    """A conversation that waits for what is typed."""
    made = terminal("chat", *arguments, **how)
    wait_for_prompt(made)
    return made


def wait_for_prompt(terminal: Terminal, text: str = "") -> None:
    """Wait until nothing is under way and the input is empty, or has a text."""

    def is_there() -> bool:
        lines = [line for line in terminal.text.split("\n") if line]
        return len(lines) > 1 and lines[-2] == f"{PROMPT} {text}".strip() and "tokens" in lines[-1]

    terminal.wait_until(is_there, f"prompt with {text!r}")


def use_server(root: Path, server: FakeServer) -> None:
    """Let agents talk to a model that the test plays."""
    provider = f'[provider.there]\nbase_url = "{server.url}/v1"\napi_key = "k"\n'
    (root / "config.toml").write_text(CONFIG.replace("[turn]", '[turn]\nmodel = "there:m"') + provider)


def only_session(store: Store) -> Session:
    """The one that there is."""
    (one,) = store.list()
    return store.session(one.id)


def stops(session: Session) -> list[str]:
    """How the turns of a session ended."""
    events = [one for one in session.records() if getattr(one, "kind", "") == "turn_end"]
    return [one.data["stop"] for one in events]  # type: ignore[union-attr]
