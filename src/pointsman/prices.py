"""Prices of models: what a CLI does not report is estimated from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

PER_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """In USD for a million tokens."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    """Of input that the model has read before; as `input` if it is not known."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Tokens that a model has read and written."""

    model: str
    tokens_in: int = 0
    """All of them, from a cache or not."""
    tokens_out: int = 0
    cached_tokens_in: int = 0
    """Those of `tokens_in` that came from a cache."""


def estimate(usage: ModelUsage, prices: Mapping[str, Price]) -> Decimal | None:
    """What the usage has cost in USD, to a millionth; None if no price is known for the model."""
    price = find_price(usage.model, prices)
    if price is None:
        return None
    cached = min(max(usage.cached_tokens_in, 0), usage.tokens_in)
    cached_input = price.input if price.cached_input is None else price.cached_input
    total = (usage.tokens_in - cached) * price.input + cached * cached_input + usage.tokens_out * price.output
    return (total / PER_TOKENS).quantize(Decimal("0.000001"))


def find_price(model: str, prices: Mapping[str, Price]) -> Price | None:
    """By the name of the model, or by the longest name that it begins with: versions have a date behind the name.

    Some agents put the name of the provider before it, with a slash.
    """
    forms = (model, model.rpartition("/")[2])
    names = [name for name in prices if any(form == name or form.startswith(f"{name}-") for form in forms)]
    return prices[max(names, key=len)] if names else None
