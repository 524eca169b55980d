"""Errors of model calls, mapped to those of everlog.

`map_error` is the only place where exceptions of pydantic-ai, of the vendors' libraries and of HTTP
are mapped. They are distinguished by class name and HTTP status, so that none of those libraries is
imported. Nothing here retries.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from everlog.errors import (
    ContextOverflowError,
    EverlogError,
    ProviderDeniedError,
    ProviderError,
    ProviderRefusedError,
    ProviderUnavailableError,
)

# How servers say that a context is too large; the comment names the server.
_OVERFLOW_PATTERN = re.compile(
    "|".join(
        (
            r"context_length_exceeded",  # OpenAI, as a code
            r"maximum context length",  # OpenAI, vLLM, OpenRouter, Mistral
            r"exceeds? the context (window|length)",  # OpenAI's Responses, Ollama
            r"prompt is too long",  # Anthropic
            r"exceed(s|ed)? (the )?context (limit|length|window)",  # Anthropic, with max_tokens
            r"request_too_large|request exceeds the maximum size",  # Anthropic, in bytes
            r"input token count.{0,40}exceeds",  # Google
            r"exceeds the maximum number of tokens allowed",  # Google
            r"longer than the maximum model length",  # vLLM
            r"exceeds? the available context size|exceed_context_size_error",  # llama.cpp
            r"prompt too long|exceeded max context length|input length exceeds",  # Ollama
            r"greater than the context length",  # LM Studio
            r"reduce the length of the (messages|input|prompt)",  # OpenAI, Groq
            r"maximum prompt length is",  # xAI
            r"input is too long|input tokens exceeded",  # Bedrock
            r"exceeded model token limit",  # Moonshot
        )
    ),
    re.IGNORECASE | re.DOTALL,
)

# pydantic-ai chooses these classes by the provider's codes and messages, so they take precedence
# over the status: an exhausted account is a 429 too, and flagged input may be a 403.
_OVERFLOW = {"ModelContextWindowExceededError"}
_DENIED = {"ModelAuthenticationError", "ModelQuotaExceededError"}
_RETRYABLE = {"ModelRateLimitError", "ModelUnavailableError", "ModelServerError", "ModelRequestTimeout"}
_REFUSED = {"ModelRequestRejectedError", "ContentFilterError", "UserError"}

_DENIED_STATUS = {401, 402, 403, 407}
_RETRYABLE_STATUS = {408, 409, 425, 429}  # and all from 500 on; 409: a lock timeout

# Without a status there was no answer: the connection or the stream broke.
_CONNECTION_ERRORS = {
    "ModelConnectionError",
    "ModelAPIError",  # not a subclass: an answer that ended early or was not JSON
    "APIConnectionError",
    "TransportError",
    "StreamError",
    "ConnectionError",
    "TimeoutError",
    "OSError",
    "EndOfStream",
    "IncompleteRead",
}

_KEY_PATTERN = re.compile(r"\b(sk|pk|rk|gsk|xai|key|api)[-_][\w-]{8,}|\bAIza[\w-]{10,}|\bBearer\s+\S+", re.IGNORECASE)
_MAX_MESSAGE_CHARS = 600
RETRY_HINT = "try again later, or use another model"
CHANGE_HINT = "change the request or use another model"


class Endpoint(NamedTuple):
    """The address of a model, as errors of its calls name it."""

    model: str  # provider:name
    address: str = ""
    table: str = ""  # of the settings, if there is one: provider.NAME
    key: str = ""  # where the key is from: a variable, or a setting

    def __str__(self) -> str:
        return f"{self.model} at {self.address}" if self.address else self.model


def map_error(error: BaseException, secrets: Iterable[str] = (), endpoint: Endpoint | None = None) -> EverlogError:
    """Map an error of a model call; its text contains no key and none of `secrets`."""
    if isinstance(error, EverlogError):
        if endpoint is not None:
            error.message = f"{endpoint}: {error.message}"
        return error
    if isinstance(error, BaseExceptionGroup):
        return map_error(error.exceptions[0], secrets, endpoint)
    names = {kind.__name__ for kind in type(error).__mro__}
    status = _status(error)
    message = redact_keys(_error_message(error), secrets)
    text = f"HTTP {status}: {message}" if status else message
    if endpoint is not None:
        text = f"{endpoint}: {text}"

    def is_a(kinds: set[str]) -> bool:
        return not names.isdisjoint(kinds)

    may_overflow = status not in (*_DENIED_STATUS, 429) and not is_a(_RETRYABLE)
    if is_a(_OVERFLOW) or (may_overflow and _OVERFLOW_PATTERN.search(message)):
        return ContextOverflowError(text, hint="use a model with a larger window, or compact the session")
    decided = is_a(_DENIED | _RETRYABLE | _REFUSED)  # whatever the status is
    if is_a(_DENIED) or (not decided and status in _DENIED_STATUS):
        source = f" ({endpoint.key})" if endpoint is not None and endpoint.key else ""
        return ProviderDeniedError(text, hint=f"check the key{source} and the account")
    is_retryable = status in _RETRYABLE_STATUS or status >= 500 or (not status and is_a(_CONNECTION_ERRORS))
    if is_a(_RETRYABLE) or (not decided and is_retryable):
        return ProviderUnavailableError(text, hint=_waiting_hint(status, endpoint), retry_after=_retry_after(error))
    if decided or status:
        name_hint = "check the model's name and the base_url"
        return ProviderRefusedError(text, hint=name_hint if status == 404 else CHANGE_HINT)
    return ProviderError(text, hint=f"check {_settings_of(endpoint)}: its api must be the one that the server speaks")


def _waiting_hint(status: int, endpoint: Endpoint | None) -> str:
    """Return what to do about a provider that cannot answer for now."""
    if status == 429:
        return f"the provider limits requests or tokens: {RETRY_HINT}"
    if status:
        return f"the provider has a problem: {RETRY_HINT}"
    if endpoint is not None and endpoint.table:
        return f"check that the server is running and reachable: base_url in [{endpoint.table}]"
    return "check the network connection, and that the provider can be reached"


def _settings_of(endpoint: Endpoint | None) -> str:
    return f"[{endpoint.table}]" if endpoint is not None and endpoint.table else "the settings of the provider"


def redact_keys(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without keys: some servers repeat the key that they refuse."""
    for secret in secrets:
        if len(secret) >= 6:  # a shorter one may be part of any word
            text = text.replace(secret, "***")
    text = _KEY_PATTERN.sub("***", text)
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]} …"


def _status(error: BaseException) -> int:
    """Return the HTTP status of an error, or 0; google-genai calls it `code`."""
    response = _safe_getattr(error, "response")
    for holder, name in ((error, "status_code"), (error, "code"), (response, "status_code")):
        status = _safe_getattr(holder, name)
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return 0


def _safe_getattr(value: object, name: str) -> Any:
    """Return an attribute, or None: some are properties that raise."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _error_message(error: BaseException) -> str:
    """Return the provider's message if there is one, else that of the exception."""
    body = _safe_getattr(error, "body")
    message = _body_message(body) or str(_safe_getattr(error, "message") or "")
    try:
        message = message or str(error)
    except Exception:  # foreign code
        message = ""
    if isinstance(body, Mapping):
        message += "".join(f" ({value})" for key in ("code", "type") if isinstance(value := body.get(key), str))
    return message or type(error).__name__


def _body_message(body: object) -> str:
    """Return `message` of a JSON body, at the top level or under `error`."""
    if not isinstance(body, Mapping):
        return ""
    inner = body.get("error")
    if isinstance(inner, Mapping):
        return _body_message(inner)
    message = body.get("message") or (inner if isinstance(inner, str) else "")
    return message if isinstance(message, str) else ""


def _retry_after(error: BaseException) -> float | None:
    """Return the delay in seconds that the provider asks for."""
    seconds = _safe_getattr(error, "retry_after")
    if isinstance(seconds, int | float):
        return float(seconds)
    response = _safe_getattr(error, "response")
    headers = _safe_getattr(error, "headers") or _safe_getattr(response, "headers")
    if isinstance(headers, Mapping):
        lowercase = {str(key).lower(): str(value) for key, value in headers.items()}
        for key, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
            if re.fullmatch(r"\d{1,9}(\.\d+)?", lowercase.get(key, "")):
                return float(lowercase[key]) * unit
        try:
            date = parsedate_to_datetime(lowercase["retry-after"])
            return max(date.timestamp() - time.time(), 0.0)
        except (KeyError, ValueError, TypeError, OverflowError):
            pass
    delay = re.search(r"retryDelay\W+(\d+(\.\d+)?)s", str(_safe_getattr(error, "body")))  # Google
    return float(delay[1]) if delay else None
