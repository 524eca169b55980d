"""Prices by the lists: for what they know, and for nothing else."""

from __future__ import annotations

import pytest

from everlog.model import UsageRow
from everlog.providers.prices import estimate_cost, rates_of


def test_a_known_model_has_a_price_with_and_without_its_provider() -> None:
    rates = rates_of("claude-sonnet-4-5")
    assert rates is not None
    assert 0 < rates.cache_read < rates.input < rates.cache_write < rates.output
    assert rates_of("anthropic:claude-sonnet-4-5") == rates


def test_the_price_of_many_tokens_is_that_of_as_many_small_calls() -> None:
    one = estimate_cost(UsageRow("", "claude-sonnet-4-5", input_tokens=1_000))
    many = estimate_cost(UsageRow("", "claude-sonnet-4-5", input_tokens=1_000_000_000))
    assert one is not None and many == pytest.approx(one * 1_000_000)


def test_each_kind_of_token_has_its_own_price() -> None:
    spent = UsageRow("", "gpt-5", 0, 0, 10, 20, 30, 40)
    rates = rates_of("gpt-5")
    assert rates is not None
    expected = sum(n * each for n, each in zip((10, 20, 30, 40), rates, strict=True))
    assert estimate_cost(spent) == pytest.approx(expected)


@pytest.mark.parametrize("model", ["", "house-1", "no:such", "a:b:c", "<synthetic>", "x" * 5000])
def test_a_model_on_no_list_has_no_price(model: str) -> None:
    assert rates_of(model) is None
    assert estimate_cost(UsageRow("", model, input_tokens=5)) is None


def test_the_offline_model_costs_nothing() -> None:
    assert estimate_cost(UsageRow("", "offline", input_tokens=5)) == 0.0
