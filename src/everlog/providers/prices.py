"""What tokens cost by the price lists of the providers, for display only: nothing of it is stored.

The lists come with `genai-prices`, which is installed with pydantic-ai, and are of its release:
nothing is asked for over the network. A model that is on none has no price. Without the library
none has.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everlog.model import UsageRow
from everlog.providers.offline_model import NAME as OFFLINE

# Prices are asked for so many tokens: above some size a single call costs more per token, and
# the sum of a day is no single call.
_SAMPLE = 1_000


class Rates(NamedTuple):
    """Dollars for one token."""

    given: float
    answered: float
    cache_read: float
    cache_written: float


def estimate(spent: UsageRow) -> float | None:
    """Dollars by the list; None if the model has no price."""
    rates = rates_of(spent.model)
    if rates is None:
        return None
    return (
        spent.input_tokens * rates.given
        + spent.output_tokens * rates.answered
        + spent.cache_read_tokens * rates.cache_read
        + spent.cache_write_tokens * rates.cache_written
    )


@lru_cache(maxsize=256)
def rates_of(model: str) -> Rates | None:
    """The prices of a model, named `name` or `provider:name`."""
    if model == OFFLINE:
        return Rates(0.0, 0.0, 0.0, 0.0)
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415 - 0.3 s, and few ask
    except ModuleNotFoundError:
        return None
    provider, _, name = model.rpartition(":")
    for whose in (provider, None) if provider else (None,):
        try:
            prices = [
                float(calc_price(usage, name, provider_id=whose).total_price) / _SAMPLE
                for usage in (
                    Usage(input_tokens=_SAMPLE),
                    Usage(output_tokens=_SAMPLE),
                    # Among the input, as the providers count them.
                    Usage(input_tokens=_SAMPLE, cache_read_tokens=_SAMPLE),
                    Usage(input_tokens=_SAMPLE, cache_write_tokens=_SAMPLE),
                )
            ]
        except (LookupError, ValueError):  # on no list of this provider
            continue
        return Rates(*prices)
    return None
