"""The models of the world, called through pydantic-ai.

A model is named `provider:name`. If `[provider.PROVIDER]` is in the settings, that table says whose
interface it speaks, where it is and which key it takes; else it is one that pydantic-ai knows, with
the key in its usual variable. Each is connected when it is first called and called exactly once per
`complete`: retrying is the engine's. pydantic-ai is loaded when the first model is connected.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from everlog.errors import ProviderError, SettingsError
from everlog.model import File, Image, Message
from everlog.ports import DeltaCallback, Request, ignore_delta
from everlog.providers.offline_model import NAME as OFFLINE
from everlog.providers.offline_model import OfflineModel
from everlog.providers.provider_errors import mapped, without_keys
from everlog.settings import ProviderSettings, Settings

if TYPE_CHECKING:
    from pydantic_ai.models import Model

INSTALL = "pip install 'everlog[agent]'"
LONGEST = 10_000_000  # characters of an answer: no model says that much, but a server might
NO_KEY = "api-key-not-set"  # what is sent to a server of one's own that wants none

# How servers say that a model sees no images: llama.cpp, Ollama, OpenAI, vLLM, OpenRouter, Groq …
_BLIND = re.compile(
    r"(image|multimodal|vision|file).{0,40}(not |un)support|support.{0,40}(image|multimodal|vision)"
    r"|not a multimodal|at most 0 image|required for image|image_url|content must be a string",
    re.IGNORECASE,
)


def connect(
    model: str, settings: Settings, environment: Mapping[str, str] = os.environ
) -> Models | OfflineModel:
    """The provider of a model; SettingsError, naming what to set, if there can be none."""
    if model == OFFLINE:
        return OfflineModel()
    models = Models(settings, model, environment)
    models.check(model)
    return models


class _Link(msgspec.Struct):
    """A connected model."""

    model: Model[Any]
    secrets: tuple[str, ...]
    loop: asyncio.AbstractEventLoop | None = None  # that its connections belong to
    blind: bool = False  # it has refused to look at images and files


class Models:
    """A provider of every model that can be named; a request without one gets the default."""

    def __init__(
        self, settings: Settings, default: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.default = default
        self._settings = settings
        self._environment = environment
        self._links: dict[str, _Link] = {}

    def __repr__(self) -> str:
        return f"Models({self.default!r})"

    async def complete(self, request: Request, on_delta: DeltaCallback = ignore_delta) -> Message:
        """The model's answer, told as it comes."""
        name = request.model or self.default
        if name == OFFLINE:
            return await OfflineModel().complete(request, on_delta)
        link = self._link(name)
        try:
            return await self._answer(link, name, request, on_delta)
        except ProviderError as error:
            if link.blind or not (_BLIND.search(error.message) and _shows_something(request)):
                raise
        # Else a session that has an image could never be gone on with by this model.
        link.blind = True
        return await self._answer(link, name, request, on_delta)

    async def _answer(
        self, link: _Link, name: str, request: Request, told: DeltaCallback
    ) -> Message:
        from pydantic_ai.direct import model_request_stream  # noqa: PLC0415 - see above

        from everlog.providers import message_conversion  # noqa: PLC0415 - see above

        provider, system = message_conversion.provider_of(name), link.model.system
        try:
            async with model_request_stream(
                link.model,
                message_conversion.messages(request, provider, system, blind=link.blind),
                model_settings=message_conversion.settings(request),
                model_request_parameters=message_conversion.parameters(request),
            ) as stream:
                size = 0
                async for event in stream:
                    delta = message_conversion.heard(event)
                    if delta is not None:
                        told(delta)
                        size += len(delta.text)
                        if size > LONGEST:
                            raise ProviderError(f"more than {LONGEST:,} characters of an answer")
                response = stream.get()
        except Exception as error:
            # Where the server repeated the key, the original is not shown either.
            said = any(secret in str(error) for secret in link.secrets if secret)
            raise mapped(error, link.secrets) from (None if said else error)
        return message_conversion.received(response, name)

    def window(self, model: str) -> int | None:
        """What `[provider.NAME]` says of its models."""
        table = self._settings.provider.get((model or self.default).partition(":")[0])
        return (table.window or None) if table is not None else None

    def check(self, model: str) -> None:
        """SettingsError if the model cannot be connected as things are; nothing is sent."""
        if model != OFFLINE:
            self._links[model] = self._links.get(model) or self._connected(model)

    async def close(self) -> None:
        """Close the connections that are open; a later call opens them again."""
        links, self._links = self._links, {}
        for link in links.values():
            if link.loop in (None, asyncio.get_running_loop()):
                async with link.model:  # leaving closes its connections
                    pass

    def _link(self, name: str) -> _Link:
        """The connected model; anew if the loop that its connections belonged to has ended."""
        loop = asyncio.get_running_loop()
        link = self._links.get(name)
        if link is None or link.loop not in (None, loop):
            link = self._links[name] = self._connected(name)
        link.loop = loop
        return link

    def _connected(self, model: str) -> _Link:
        provider, colon, name = model.partition(":")
        if not (provider and colon and name):
            raise SettingsError(
                f"{model[:80]!r} names no model", hint=f"write provider:name, or {OFFLINE!r}"
            )
        try:
            import pydantic_ai.direct  # noqa: F401, PLC0415 - now, not in the middle of a turn
        except ImportError as error:
            raise SettingsError(f"{model} needs pydantic-ai", hint=INSTALL) from error
        table = self._settings.provider.get(provider)
        key = "" if table is None else _key(provider, table, self._environment)
        try:
            if table is None:
                built = _known(model)
            else:
                built = _configured(provider, name, table, key)
        except ImportError as error:
            raise SettingsError(
                f"{model} needs a package that is missing: {error}", hint=INSTALL
            ) from error
        except Exception as error:
            raise _unusable(model, provider, error, key) from None
        found = getattr(getattr(built, "client", None), "api_key", None)
        return _Link(built, (key, found if isinstance(found, str) else ""))


def _shows_something(request: Request) -> bool:
    return any(
        isinstance(block, Image | File) for message in request.messages for block in message.content
    )


def _key(provider: str, table: ProviderSettings, environment: Mapping[str, str]) -> str:
    """The key of a table; one that is named and not there is an error, not an empty key."""
    if table.api_key or not table.api_key_env:
        return table.api_key
    key = environment.get(table.api_key_env, "")
    if not key:
        raise SettingsError(
            f"[provider.{provider}]: the variable {table.api_key_env} is not set",
            hint=f"set {table.api_key_env}",
        )
    return key


def _known(model: str) -> Model[Any]:
    """A model that pydantic-ai knows by name; its key is in the variable that is usual for it."""
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - see above

    return infer_model(model)


def _configured(provider: str, name: str, table: ProviderSettings, key: str) -> Model[Any]:
    """A model of a provider that the settings describe.

    A server of one's own never gets a key that was not given for it: the libraries would take
    OpenAI's or Anthropic's from the environment.
    """
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - see above
    from pydantic_ai.providers import infer_provider_class  # noqa: PLC0415

    if table.base_url and not table.base_url.startswith(("http://", "https://")):
        raise ValueError("base_url must begin with http:// or https://")
    api = _interface(provider, table)
    if api in ("openai", "openai-chat", "openai-responses"):
        return _openai(provider, name, table.base_url, key, responses=api == "openai-responses")
    given = {"base_url": table.base_url} if table.base_url else {}
    if key or table.base_url:
        given["api_key"] = key or NO_KEY
    return infer_model(f"{api}:{name}", lambda kind: infer_provider_class(kind)(**given))


def _interface(provider: str, table: ProviderSettings) -> str:
    """`api`; a table called like a known provider, and without an address, means that one."""
    from pydantic_ai.providers import infer_provider_class  # noqa: PLC0415 - see above

    if table.api == "openai" and not table.base_url:
        try:
            infer_provider_class(provider)
            return provider
        except (ValueError, ImportError):
            pass
    return table.api


def _openai(provider: str, name: str, base_url: str, key: str, *, responses: bool) -> Model[Any]:
    from pydantic_ai.models.openai import (  # noqa: PLC0415 - see above
        OpenAIChatModel,
        OpenAIResponsesModel,
    )
    from pydantic_ai.profiles.openai import OpenAIModelProfile  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415
    from pydantic_ai.providers.openai_compatible import (  # noqa: PLC0415
        OpenAICompatibleProvider,
    )

    theirs = not base_url or base_url.startswith("https://api.openai.com/")
    place: OpenAIProvider | OpenAICompatibleProvider
    if theirs:
        place = OpenAIProvider(base_url=base_url or None, api_key=key or None)
    else:
        place = OpenAICompatibleProvider(provider, base_url=base_url, api_key=key or NO_KEY)
    if responses:
        return OpenAIResponsesModel(name, provider=place)
    profile = OpenAIModelProfile(
        # A stream without its last chunk was cut off; it is not to pass for a whole answer.
        openai_chat_streaming_requires_finish_reason=True,
        # Other servers know `max_tokens` alone, and some refuse what they do not know.
        openai_chat_supports_max_completion_tokens=theirs,
    )
    return OpenAIChatModel(name, provider=place, profile=profile)


def _unusable(model: str, provider: str, error: Exception, key: str) -> SettingsError:
    """Why a model cannot be connected, and what to set."""
    said = without_keys(str(error), (key,))
    variables = re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", said)
    if variables:
        found = " or ".join(dict.fromkeys(variables))
        return SettingsError(
            f"{model} needs {found}",
            hint=f"set it in the environment, or api_key_env in [provider.{provider}]",
        )
    if said.startswith("Unknown provider"):
        return SettingsError(
            f"[provider.{provider}] api: {said}",
            hint="openai, openai-responses, anthropic, google …",
        )
    if said.startswith("Unknown model"):
        return SettingsError(
            f"there is no provider {provider!r}",
            hint=f"add [provider.{provider}] with its base_url, or use a known one",
        )
    return SettingsError(f"{model}: {said}", hint=f"see [provider.{provider}] in docs/providers.md")
