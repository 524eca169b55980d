"""Every error that a model call can end in is one of ours.

The libraries are loaded by the tests and not with this file, as every worker reads all files.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from everlog.errors import (
    ContextOverflowError,
    EverlogError,
    ProviderDeniedError,
    ProviderError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from everlog.providers import provider_errors
from everlog.providers.provider_errors import map_error

Made = Callable[[], Exception]


def kind(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def made(path: str, *given: Any, **named: Any) -> Made:
    """An exception of a library, when it is asked for."""
    return lambda: kind(path)(*given, **named)


def agent(name: str, *given: Any, **named: Any) -> Made:
    return made(f"pydantic_ai.exceptions.{name}", *given, **named)


def http(status: int, message: str = "") -> Made:
    return agent("ModelHTTPError", status, "m", {"message": message})


def categorised(name: str, status: int) -> Made:
    def make() -> Exception:
        category = kind(f"pydantic_ai.exceptions.{name}")
        error = kind("pydantic_ai.exceptions.ModelHTTPError")
        found: Exception = error.for_category(category, status_code=status, model_name="m")
        return found

    return make


def request() -> Any:
    return kind("httpx2.Request")("POST", "http://127.0.0.1/v1")


def vendor(path: str, status: int, message: str = "no", **headers: str) -> Made:
    """An error of HTTP as OpenAI's or Anthropic's library raises it."""

    def make() -> Exception:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        response = kind("httpx2.Response")(status, headers=named, request=request())
        body = {"error": {"message": message}}
        found: Exception = kind(path)(message, response=response, body=body)
        return found

    return make


GOOGLE = {"error": {"message": "no"}}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (http(401), ProviderDeniedError),
        (http(403), ProviderDeniedError),
        (http(402), ProviderDeniedError),
        (categorised("ModelQuotaExceededError", 429), ProviderDeniedError),
        (categorised("ModelRequestRejectedError", 403), ProviderRefusedError),
        (categorised("ModelOverloadedError", 503), ProviderUnavailableError),
        *[(http(code), ProviderUnavailableError) for code in (408, 409, 429, 500, 502, 503, 504, 529)],
        *[(http(code), ProviderRefusedError) for code in (400, 404, 405, 422)],
        (agent("ModelConnectionError", "m", "refused"), ProviderUnavailableError),
        (agent("ModelAPIError", "m", "ended without a `finish_reason`"), ProviderUnavailableError),
        (agent("ContentFilterError", "filtered"), ProviderRefusedError),
        (agent("UserError", "no such file type"), ProviderRefusedError),
        (agent("UnexpectedModelBehavior", "odd"), ProviderError),
        (agent("FallbackExceptionGroup", "all", [TimeoutError()]), ProviderUnavailableError),
        (vendor("openai.AuthenticationError", 401), ProviderDeniedError),
        (vendor("openai.RateLimitError", 429), ProviderUnavailableError),
        (vendor("openai.BadRequestError", 400), ProviderRefusedError),
        (vendor("anthropic.PermissionDeniedError", 403), ProviderDeniedError),
        (vendor("anthropic.InternalServerError", 529), ProviderUnavailableError),
        (lambda: kind("openai.APIConnectionError")(request=request()), ProviderUnavailableError),
        (lambda: kind("anthropic.APITimeoutError")(request=request()), ProviderUnavailableError),
        (made("google.genai.errors.ClientError", 403, GOOGLE), ProviderDeniedError),
        (made("google.genai.errors.ClientError", 429, GOOGLE), ProviderUnavailableError),
        (made("google.genai.errors.ServerError", 503, GOOGLE), ProviderUnavailableError),
        (made("httpx2.ReadTimeout", "slow"), ProviderUnavailableError),
        (made("httpx2.RemoteProtocolError", "peer closed connection"), ProviderUnavailableError),
        (made("builtins.ConnectionResetError", "reset"), ProviderUnavailableError),
        (made("builtins.TimeoutError"), ProviderUnavailableError),
        (made("builtins.ValueError", "odd"), ProviderError),
    ],
)
def test_an_error_means_what_its_provider_meant(error: Made, expected: type[EverlogError]) -> None:
    assert type(map_error(error())) is expected


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens."),
        (400, "Your input exceeds the context window of this model. Please adjust your input and try again."),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        (413, "Request exceeds the maximum size"),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 4096."),
        (400, "request (5031 tokens) exceeds the available context size (2048 tokens), try increasing it"),
        (500, "the request exceeds the available context size"),
        (400, "prompt too long; exceeded max context length by 12 tokens"),
        (400, "the input length exceeds the context length"),
        (400, "Please reduce the length of the messages or completion."),
        (400, "This model's maximum prompt length is 131072 but the request contains 200000 tokens."),
    ],
)  # fmt: skip
def test_a_context_that_is_too_large_is_known_by_any_wording(status: int, message: str) -> None:
    assert type(map_error(http(status, message)())) is ContextOverflowError


def test_a_rate_of_tokens_is_no_size() -> None:
    error = http(429, "Rate limit reached: maximum context length of tokens per min")()
    assert type(map_error(error)) is ProviderUnavailableError


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (vendor("openai.RateLimitError", 429, retry_after="12"), 12.0),
        (vendor("openai.RateLimitError", 429, retry_after="1.5"), 1.5),
        (vendor("anthropic.RateLimitError", 429, retry_after_ms="250"), 0.25),
        (vendor("openai.RateLimitError", 429, retry_after="soon"), None),
        (http(429), None),
        (agent("ModelHTTPError", 429, "m", {"error": [{"retryDelay": "34s"}]}), 34.0),
    ],
)
def test_how_long_to_wait_is_read_where_it_is_said(error: Made, seconds: float | None) -> None:
    found = map_error(error())
    assert isinstance(found, ProviderUnavailableError)
    assert found.retry_after == seconds


def test_a_date_to_wait_for_is_read_too() -> None:
    date = formatdate(time.time() + 30, usegmt=True)
    found = map_error(vendor("openai.RateLimitError", 429, retry_after=date)())
    assert isinstance(found, ProviderUnavailableError)
    assert found.retry_after is not None and 20 < found.retry_after <= 30


@pytest.mark.parametrize("key", ["sk-proj-abcdefghijkl", "AIzaSyABCDEFGHIJKLMNOP", "Bearer whatever", "own-odd-key"])
def test_no_key_is_in_what_is_said(key: str) -> None:
    shown = map_error(http(401, f"the key {key} is wrong")(), ["own-odd-key", ""])
    assert key not in f"{shown} {shown!r}"
    assert "is wrong" in str(shown)


LIBRARIES = ("pydantic_ai.exceptions", "openai", "anthropic", "httpx2", "google.genai.errors")


def kinds(library: str) -> list[type[Exception]]:
    found = inspect.getmembers(importlib.import_module(library), inspect.isclass)
    return [
        one for name, one in found if issubclass(one, Exception) and not issubclass(one, Warning) and name[0] != "_"
    ]


def bare(one: type[Exception]) -> Exception:
    """An exception without anything that it is usually made with."""
    if issubclass(one, ExceptionGroup):
        return one("several", [ValueError("one")])
    try:
        return one.__new__(one)
    except TypeError:
        return one("said")


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_error_of_the_libraries_becomes_one_of_ours(library: str) -> None:
    every = kinds(library)
    assert len(every) > 2
    for one in every:
        found = map_error(bare(one))
        assert isinstance(found, ProviderError | ContextOverflowError), one
        assert found.message, one


def test_the_errors_that_are_told_apart_by_name_exist() -> None:
    told = provider_errors._OVERFLOW | provider_errors._DENIED | provider_errors._RETRYABLE | provider_errors._REFUSED
    assert told <= {one.__name__ for one in kinds("pydantic_ai.exceptions")}
