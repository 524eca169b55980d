"""Cost estimates from the providers' price lists, for display only: they are never stored.

The lists are part of `genai-prices`, which is installed with pydantic-ai; no network is used. A
model that is on no list has no price. Without the library no model has one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everlog.model import UsageRow
from everlog.providers.offline_model import NAME as OFFLINE

# Tokens for which a price is looked up: a very large call costs more per token, but the sum of a
# day is not a single call.
_SAMPLE = 1_000


class Rates(NamedTuple):
    """Prices in dollars per token."""

    input: float
    output: float
    cache_read: float
    cache_write: float


def estimate_cost(usage: UsageRow) -> float | None:
    """Return the cost in dollars; None if the model has no price."""
    rates = rates_of(usage.model)
    if rates is None:
        return None
    counts = usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens
    return sum(count * rate for count, rate in zip(counts, rates, strict=True))


@lru_cache(maxsize=256)
def rates_of(model: str) -> Rates | None:
    """Return the prices of a model, named `name` or `provider:name`."""
    if model == OFFLINE:
        return Rates(0.0, 0.0, 0.0, 0.0)
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415 - 0.3 s, and few ask
    except ModuleNotFoundError:
        return None
    provider, _, name = model.rpartition(":")
    for provider_id in (provider, None) if provider else (None,):
        try:
            prices = [
                float(calc_price(usage, name, provider_id=provider_id).total_price) / _SAMPLE
                for usage in (
                    Usage(input_tokens=_SAMPLE),
                    Usage(output_tokens=_SAMPLE),
                    # Part of the input, as the providers count them.
                    Usage(input_tokens=_SAMPLE, cache_read_tokens=_SAMPLE),
                    Usage(input_tokens=_SAMPLE, cache_write_tokens=_SAMPLE),
                )
            ]
        except (LookupError, ValueError):  # not on the list of this provider
            continue
        return Rates(*prices)
    return None
