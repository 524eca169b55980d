"""Which model a name means, and what is said if it means none."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from everlog.errors import SettingsError
from everlog.model import user
from everlog.ports import Provider, Request
from everlog.providers.models import Models, connect
from everlog.providers.offline_model import OfflineModel
from everlog.settings import ProviderSettings, Settings
from tests.providers.fake_server import FakeServer, chat

KEY = "a-very-secret-key-of-the-tests"


def settings(name: str = "own", **table: object) -> Settings:
    return Settings(provider={name: ProviderSettings(**table)})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_modules_load_without_pydantic_ai_and_without_mcp() -> None:
    loaded = run(
        "import sys, everlog.providers.models, everlog.providers.mcp_tools, everlog.providers.offline_model\n"
        "from everlog.settings import Settings\n"
        "everlog.providers.models.connect('offline', Settings())\n"
        "print([n for n in ('pydantic_ai', 'mcp', 'openai', 'anthropic', 'httpx2') if n in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_without_the_extra_the_error_says_what_to_install() -> None:
    said = run(
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from everlog.providers.models import connect\n"
        "from everlog.settings import Settings\n"
        "from everlog.errors import SettingsError\n"
        "try: connect('openai:gpt-5', Settings())\n"
        "except SettingsError as error: print(error)"
    )
    assert "pip install 'everlog[agent]'" in said


def test_offline_is_the_model_that_needs_nothing() -> None:
    assert isinstance(connect("offline", Settings()), OfflineModel)


@pytest.mark.parametrize(
    ("model", "table", "words"),
    [
        ("gpt-5", {}, "provider:name"),
        ("openai:", {}, "provider:name"),
        ("nobody:m", {}, "[provider.nobody]"),
        ("openai:gpt-5", {}, "OPENAI_API_KEY"),
        ("anthropic:claude-x", {}, "ANTHROPIC_API_KEY"),
        ("google:gemini-x", {}, "GOOGLE_API_KEY"),
        ("own:m", {"api_key_env": "MY_OWN_KEY"}, "set MY_OWN_KEY"),
        ("own:m", {"api": "anthropic"}, "ANTHROPIC_API_KEY"),
        ("own:m", {"api": "nothing", "base_url": "http://127.0.0.1"}, "nothing"),
        ("own:m", {"base_url": "localhost:11434/v1"}, "http://"),
    ],
)
@pytest.mark.slow
def test_a_model_that_cannot_be_connected_says_what_to_set(model: str, table: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        connect(model, settings("own", **table), {})
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "table", "kind"),
    [
        ("own", {"base_url": "http://127.0.0.1:1/v1"}, "OpenAIChatModel"),
        ("own", {"api_key": KEY}, "OpenAIChatModel"),
        ("own", {"api": "openai-responses", "api_key": KEY}, "OpenAIResponsesModel"),
        ("own", {"api": "anthropic", "api_key": KEY}, "AnthropicModel"),
        ("own", {"api": "anthropic", "base_url": "http://127.0.0.1:1"}, "AnthropicModel"),
        ("own", {"api": "google", "api_key_env": "OWN"}, "GoogleModel"),
        ("own", {"api": "ollama", "base_url": "http://127.0.0.1:1/v1"}, "OllamaModel"),
        ("anthropic", {"api_key": KEY}, "AnthropicModel"),
    ],
)
def test_a_table_says_whose_interface_is_spoken(name: str, table: dict[str, object], kind: str) -> None:
    made = connect(f"{name}:m", settings(name, **table), {"OWN": KEY})
    assert isinstance(made, Models)
    link = made._connected_models[f"{name}:m"]
    assert type(link.model).__name__ == kind
    assert KEY not in f"{made!r} {link.model!r}"


def test_a_server_of_ones_own_never_gets_the_key_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def ask(server: FakeServer) -> None:
        provider = connect("own:m", settings(base_url=f"{server.url}/v1"))
        await provider.complete(Request(messages=(user("hello"),)))
        await provider.close()

    with FakeServer(chat("hi")) as server:
        asyncio.run(ask(server))
        assert KEY not in str(server.sent[0].headers)


def test_a_window_is_known_where_it_is_set() -> None:
    made: Provider = connect("own:m", settings(base_url="http://127.0.0.1:1", window=4096), {})
    assert made.window("own:m") == 4096
    assert made.window("") == 4096
    assert made.window("other:m") is None
    unset = connect("own:m", settings(base_url="http://127.0.0.1:1"), {})
    assert unset.window("own:m") is None
