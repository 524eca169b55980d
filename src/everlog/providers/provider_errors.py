"""What goes wrong between us and a model, in our own words.

`mapped` is the one place where the exceptions of pydantic-ai, of the vendors' libraries and of
HTTP become ours. They are told apart by the names of their classes and by the HTTP status, so none
of those libraries is loaded for it. Nothing here retries.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from everlog.errors import (
    ContextOverflowError,
    EverlogError,
    ProviderDeniedError,
    ProviderError,
    ProviderRefusedError,
    ProviderUnavailableError,
)

# How servers say that a context is too large; each is the wording of the one named behind it.
_TOO_LARGE = re.compile(
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

# pydantic-ai has looked at a provider's codes and words before it chose one of these, so they
# count before the status: an exhausted account is a 429 too, and flagged input may be a 403.
_OVERFLOW = {"ModelContextWindowExceededError"}
_DENIED = {"ModelAuthenticationError", "ModelQuotaExceededError"}
_LATER = {"ModelRateLimitError", "ModelUnavailableError", "ModelServerError", "ModelRequestTimeout"}
_REFUSED = {"ModelRequestRejectedError", "ContentFilterError", "UserError"}

_DENIED_STATUS = {401, 402, 403, 407}
_LATER_STATUS = {408, 409, 425, 429}  # and all from 500 on; 409 is a lock that was not had in time

# Without a status nothing was answered: the connection, or the stream, did not hold.
_BROKEN = {
    "ModelConnectionError",
    "ModelAPIError",  # and none of its kinds: an answer that ended early or was no JSON
    "APIConnectionError",
    "TransportError",
    "StreamError",
    "ConnectionError",
    "TimeoutError",
    "OSError",
    "EndOfStream",
    "IncompleteRead",
}

_KEY = re.compile(
    r"\b(sk|pk|rk|gsk|xai|key|api)[-_][\w-]{8,}|\bAIza[\w-]{10,}|\bBearer\s+\S+", re.IGNORECASE
)
_SHOWN = 600  # characters of what a provider says


def mapped(error: BaseException, secrets: Iterable[str] = ()) -> EverlogError:
    """Any error of a model call as one of ours; its text has no key in it, nor any of `secrets`."""
    if isinstance(error, EverlogError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return mapped(error.exceptions[0], secrets)
    names = {kind.__name__ for kind in type(error).__mro__}
    status = _status(error)
    said = without_keys(_said(error), secrets)
    text = f"HTTP {status}: {said}" if status else said

    def is_a(kinds: set[str]) -> bool:
        return not names.isdisjoint(kinds)

    if is_a(_OVERFLOW) or (
        status not in (*_DENIED_STATUS, 429) and not is_a(_LATER) and _TOO_LARGE.search(said)
    ):
        return ContextOverflowError(text)
    if is_a(_DENIED):
        return ProviderDeniedError(text, hint="check the key and the account")
    if is_a(_LATER):
        return ProviderUnavailableError(text, retry_after=_retry_after(error))
    if is_a(_REFUSED):
        return ProviderRefusedError(text, hint=_refusal_hint(status))
    if status in _DENIED_STATUS:
        return ProviderDeniedError(text, hint="check the key and the account")
    if status in _LATER_STATUS or status >= 500:
        return ProviderUnavailableError(text, retry_after=_retry_after(error))
    if status >= 400:
        return ProviderRefusedError(text, hint=_refusal_hint(status))
    if is_a(_BROKEN):
        return ProviderUnavailableError(text, retry_after=_retry_after(error))
    return ProviderError(text)


def without_keys(text: str, secrets: Iterable[str] = ()) -> str:
    """A text that may be shown: servers have been seen to repeat the key that they refuse."""
    for secret in secrets:
        if len(secret) >= 6:  # a shorter one is none, and may be part of any word
            text = text.replace(secret, "***")
    text = _KEY.sub("***", text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def _refusal_hint(status: int) -> str:
    return "check the model's name and the base_url" if status == 404 else ""


def _status(error: BaseException) -> int:
    """The HTTP status of an error, or 0; google-genai calls it `code`."""
    response = _attribute(error, "response")
    for status in (
        _attribute(error, "status_code"),
        _attribute(error, "code"),
        _attribute(response, "status_code"),
    ):
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return 0


def _attribute(thing: object, name: str) -> Any:
    """An attribute, or None: some are properties that raise when there is nothing to show."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def _said(error: BaseException) -> str:
    """The provider's own words if they are to be found, else the exception's."""
    body = _attribute(error, "body")
    words = _message(body) or str(_attribute(error, "message") or "")
    try:
        words = words or str(error)
    except Exception:  # somebody else's code, as below
        words = ""
    if isinstance(body, Mapping):
        words += "".join(
            f" ({value})" for key in ("code", "type") if isinstance(value := body.get(key), str)
        )
    return words or type(error).__name__


def _message(body: object) -> str:
    """`message` in a body of JSON, at its top or under `error`."""
    if not isinstance(body, Mapping):
        return ""
    inner = body.get("error")
    if isinstance(inner, Mapping):
        return _message(inner)
    found = body.get("message") or (inner if isinstance(inner, str) else "")
    return found if isinstance(found, str) else ""


def _retry_after(error: BaseException) -> float | None:
    """How long the provider asks to be left alone, in seconds."""
    known = _attribute(error, "retry_after")
    if isinstance(known, int | float):
        return float(known)
    headers = _attribute(error, "headers") or _attribute(_attribute(error, "response"), "headers")
    if isinstance(headers, Mapping):
        found = {str(key).lower(): str(value) for key, value in headers.items()}
        for key, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
            if re.fullmatch(r"\d{1,9}(\.\d+)?", found.get(key, "")):
                return float(found[key]) * unit
        try:
            return max(parsedate_to_datetime(found["retry-after"]).timestamp() - time.time(), 0.0)
        except (KeyError, ValueError, TypeError, OverflowError):
            pass
    delay = re.search(r"retryDelay\W+(\d+(\.\d+)?)s", str(_attribute(error, "body")))  # Google
    return float(delay[1]) if delay else None
