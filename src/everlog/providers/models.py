"""Models called through pydantic-ai.

A model is named `provider:name`. If the settings contain `[provider.PROVIDER]`, that table defines
its API, address and key; otherwise it is one that pydantic-ai knows, with the key in its usual
variable. A model is connected on first use and called exactly once per `complete`: the agent
retries. pydantic-ai is imported when the first model is connected.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from everlog.errors import ProviderError, SettingsError
from everlog.model import File, Image, Message
from everlog.ports import DeltaCallback, Request, ignore_delta
from everlog.providers.offline_model import NAME as OFFLINE
from everlog.providers.offline_model import OfflineModel
from everlog.providers.provider_errors import CHANGE_HINT, Endpoint, map_error, redact_keys
from everlog.settings import ProviderSettings, Settings

if TYPE_CHECKING:
    from pydantic_ai.models import Model

INSTALL = "pip install 'everlog[agent]'"
MAX_ANSWER_CHARS = 10_000_000  # no model writes that much, but a server might send it
NO_KEY = "api-key-not-set"  # sent to a custom server that needs none

# How servers say that a model takes no images: llama.cpp, Ollama, OpenAI, vLLM, OpenRouter, Groq
_NO_IMAGES = re.compile(
    r"(image|multimodal|vision|file).{0,40}(not |un)support|support.{0,40}(image|multimodal|vision)"
    r"|not a multimodal|at most 0 image|required for image|image_url|content must be a string",
    re.IGNORECASE,
)


def connect(model: str, settings: Settings, environment: Mapping[str, str] = os.environ) -> Models | OfflineModel:
    """Return the provider of a model; SettingsError, with what to set, if it cannot be used."""
    if model == OFFLINE:
        return OfflineModel()
    models = Models(settings, model, environment)
    models.check(model)
    return models


class _ConnectedModel(msgspec.Struct):
    """A connected model."""

    model: Model[Any]
    secrets: tuple[str, ...]
    endpoint: Endpoint
    loop: asyncio.AbstractEventLoop | None = None  # the one its connections belong to
    text_only: bool = False  # it has refused images and files


class Models:
    """A provider of all models; a request that names none uses the default."""

    def __init__(self, settings: Settings, default: str, environment: Mapping[str, str] = os.environ) -> None:
        self.default = default
        self._settings = settings
        self._environment = environment
        self._connected_models: dict[str, _ConnectedModel] = {}

    def __repr__(self) -> str:
        return f"Models({self.default!r})"

    async def complete(self, request: Request, on_delta: DeltaCallback = ignore_delta) -> Message:
        """Return the model's answer; `on_delta` receives it as it streams."""
        name = request.model or self.default
        if name == OFFLINE:
            return await OfflineModel().complete(request, on_delta)
        connected = self._get_connected(name)
        try:
            return await self._request(connected, name, request, on_delta)
        except ProviderError as error:
            refused = _NO_IMAGES.search(error.message) and _has_attachments(request)
            if connected.text_only or not refused:
                raise
        # Otherwise a session with an image could never be continued with this model.
        connected.text_only = True
        return await self._request(connected, name, request, on_delta)

    async def _request(
        self, connected: _ConnectedModel, name: str, request: Request, on_delta: DeltaCallback
    ) -> Message:
        from pydantic_ai.direct import model_request_stream  # noqa: PLC0415 - see above

        from everlog.providers import message_conversion  # noqa: PLC0415 - see above

        provider, system = message_conversion.provider_of(name), connected.model.system
        try:
            async with model_request_stream(
                connected.model,
                message_conversion.to_model_messages(request, provider, system, text_only=connected.text_only),
                model_settings=message_conversion.to_model_settings(request),
                model_request_parameters=message_conversion.to_parameters(request),
            ) as stream:
                size = 0
                async for event in stream:
                    delta = message_conversion.to_delta(event)
                    if delta is not None:
                        on_delta(delta)
                        size += len(delta.text)
                        if size > MAX_ANSWER_CHARS:
                            raise ProviderError(f"answer above {MAX_ANSWER_CHARS:,} characters", hint=CHANGE_HINT)
                response = stream.get()
            return message_conversion.to_message(response, name)
        except Exception as error:
            # If the server repeated the key, the original error is hidden too.
            key_in_message = any(secret in str(error) for secret in connected.secrets if secret)
            mapped = map_error(error, connected.secrets, connected.endpoint)
            raise mapped from (None if key_in_message or mapped is error else error)

    def window(self, model: str) -> int | None:
        """Return the context window set in `[provider.NAME]`."""
        table = self._settings.provider.get((model or self.default).partition(":")[0])
        return (table.window or None) if table is not None else None

    def check(self, model: str) -> None:
        """Connect a model; SettingsError if its settings do not allow that. Nothing is sent."""
        if model != OFFLINE and model not in self._connected_models:
            self._connected_models[model] = self._connect(model)

    async def close(self) -> None:
        """Close open connections; a later call opens them again."""
        connected_models, self._connected_models = self._connected_models, {}
        for connected in connected_models.values():
            if connected.loop in (None, asyncio.get_running_loop()):
                async with connected.model:  # exiting closes its connections
                    pass

    def _get_connected(self, name: str) -> _ConnectedModel:
        """Return a connected model; reconnect if its connections belong to another event loop."""
        loop = asyncio.get_running_loop()
        connected = self._connected_models.get(name)
        if connected is None or connected.loop not in (None, loop):
            connected = self._connected_models[name] = self._connect(name)
        connected.loop = loop
        return connected

    def _connect(self, model: str) -> _ConnectedModel:
        provider, colon, name = model.partition(":")
        if not (provider and colon and name):
            raise SettingsError(f"{model[:80]!r} is not a model name", hint=f"use provider:name, or {OFFLINE!r}")
        try:
            import pydantic_ai.direct  # noqa: F401, PLC0415 - now, not in the middle of a turn
        except ImportError as error:
            raise SettingsError(f"{model} needs pydantic-ai", hint=INSTALL) from error
        table = self._settings.provider.get(provider)
        key = "" if table is None else _key(provider, table, self._environment)
        try:
            connected = _build_model(model, table, key)
        except ImportError as error:
            raise SettingsError(f"{model} needs a package that is not installed: {error}", hint=INSTALL) from error
        except Exception as error:
            raise _connect_error(model, provider, error, key) from None
        client_key = getattr(getattr(connected, "client", None), "api_key", None)
        return _ConnectedModel(
            connected,
            (key, client_key if isinstance(client_key, str) else ""),
            Endpoint(
                model,
                _address(connected),
                "" if table is None else f"provider.{provider}",
                _key_source(provider, table),
            ),
        )


def _address(model: Model[Any]) -> str:
    """Return the address of a model's server, without a password."""
    try:
        parts = urlsplit(str(model.base_url or ""))
    except Exception:  # foreign code, or no URL
        return ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/") if host else ""


def _key_source(provider: str, table: ProviderSettings | None) -> str:
    """Return where the key of a provider comes from, as far as the settings say so."""
    if table is None:
        return ""
    return table.api_key_env or (f"api_key in [provider.{provider}]" if table.api_key else "")


def _has_attachments(request: Request) -> bool:
    return any(isinstance(block, Image | File) for message in request.messages for block in message.content)


def _key(provider: str, table: ProviderSettings, environment: Mapping[str, str]) -> str:
    """Return the key of a provider table; SettingsError if its variable is not set."""
    if table.api_key or not table.api_key_env:
        return table.api_key
    key = environment.get(table.api_key_env, "")
    if not key:
        raise SettingsError(
            f"[provider.{provider}]: the variable {table.api_key_env} is not set", hint=f"set {table.api_key_env}"
        )
    return key


def _build_model(model: str, table: ProviderSettings | None, key: str) -> Model[Any]:
    """Build a model that pydantic-ai knows by name, or one of a provider in the settings.

    A custom server never gets a key that was not configured for it: the libraries would send
    OpenAI's or Anthropic's from the environment.
    """
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - see above
    from pydantic_ai.providers import infer_provider_class  # noqa: PLC0415

    if table is None:
        return infer_model(model)  # its key is in the usual variable
    if table.base_url and not table.base_url.startswith(("http://", "https://")):
        raise ValueError("base_url must begin with http:// or https://")
    provider, _, name = model.partition(":")
    api = table.api
    if api == "openai" and not table.base_url:
        # A table with the name of a known provider and no address means that one.
        with suppress(ValueError, ImportError):
            infer_provider_class(provider)
            api = provider
    if api in ("openai", "openai-chat", "openai-responses"):
        return _build_openai(provider, name, table.base_url, key, responses=api == "openai-responses")
    options = {"base_url": table.base_url} if table.base_url else {}
    if key or table.base_url:
        options["api_key"] = key or NO_KEY
    return infer_model(f"{api}:{name}", lambda kind: infer_provider_class(kind)(**options))


def _build_openai(provider: str, name: str, base_url: str, key: str, *, responses: bool) -> Model[Any]:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: PLC0415 - see above
    from pydantic_ai.profiles.openai import OpenAIModelProfile  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider  # noqa: PLC0415

    is_openai = not base_url or base_url.startswith("https://api.openai.com/")
    endpoint: OpenAIProvider | OpenAICompatibleProvider
    if is_openai:
        endpoint = OpenAIProvider(base_url=base_url or None, api_key=key or None)
    else:
        endpoint = OpenAICompatibleProvider(provider, base_url=base_url, api_key=key or NO_KEY)
    if responses:
        return OpenAIResponsesModel(name, provider=endpoint)
    profile = OpenAIModelProfile(
        # A stream without its last chunk was cut off and must not pass for a complete answer.
        openai_chat_streaming_requires_finish_reason=True,
        # Other servers only support `max_tokens`, and some refuse unknown parameters.
        openai_chat_supports_max_completion_tokens=is_openai,
    )
    return OpenAIChatModel(name, provider=endpoint, profile=profile)


def _connect_error(model: str, provider: str, error: Exception, key: str) -> SettingsError:
    """Return why a model cannot be connected, and what to set."""
    message = redact_keys(str(error), (key,))
    variables = re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", message)
    problem, hint = f"{model}: {message}", f"see [provider.{provider}] in docs/providers.md"
    if variables:
        problem = f"{model} needs {' or '.join(dict.fromkeys(variables))}"
        hint = f"set it in the environment, or api_key_env in [provider.{provider}]"
    elif message.startswith("Unknown provider"):
        problem, hint = f"[provider.{provider}] api: {message}", "openai, openai-responses, anthropic, google …"
    elif message.startswith("Unknown model"):
        problem = f"there is no provider {provider!r}"
        hint = f"add [provider.{provider}] with its base_url, or use a known one"
    return SettingsError(problem, hint=hint)
