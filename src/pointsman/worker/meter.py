"""What an agent has used: its own figures, and estimates where it reports tokens but no cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from pointsman.engine.budgets import NO_USAGE, Usage
from pointsman.engine.checks import MAX_TOKENS, MAX_USD, SMALLEST_USD
from pointsman.prices import ModelUsage, Price, estimate
from pointsman.store.rows import ZERO_USD
from pointsman.worker.agent import Used

MOST_KEYS = 100
"""Figures that may still be replaced; older ones are final."""


class Figures(Struct, frozen=True):
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal = ZERO_USD
    estimated_usd: Decimal = ZERO_USD
    """The part of the cost that is an estimate."""

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.cost_usd + other.cost_usd,
            self.estimated_usd + other.estimated_usd,
        )


class UsageMeter:
    """Adds up the figures of one process. What it has counted is never taken back: it may have been reported."""

    def __init__(self, prices: Mapping[str, Price], model: str | None, before: Usage = NO_USAGE) -> None:
        """`before` is what earlier calls have used in the session that this one continues."""
        self._prices, self._model, self._before = prices, model, before
        self._final = Figures()
        self._parts: OrderedDict[str, Figures] = OrderedDict()
        self._counted = Figures()
        self._unpriced: str | None = None
        """The model of tokens that have neither a cost nor a price."""

    def see_model(self, model: str) -> None:
        """The agent says which model it works with."""
        self._model = model

    def take(self, used: Used) -> Usage:
        """Count an event; what that adds."""
        figures = self._rate(self._without_former(used) if used.of_session else used)
        if used.is_total:
            self._final, self._parts = figures, OrderedDict()
        elif used.key is None:
            self._final += figures
        else:
            self._parts[used.key] = figures
            if len(self._parts) > MOST_KEYS:
                self._final += self._parts.popitem(last=False)[1]
        return self._count(sum(self._parts.values(), self._final))

    @property
    def problem(self) -> str | None:
        """Why the cost is unknown, in a sentence."""
        if self._unpriced is None:
            return None
        if not self._unpriced:
            return "it reports tokens but no cost, and not its model. Name the `model` in the task, and its price in [prices]."
        return f'it reports tokens but no cost. Add [prices."{self._unpriced}"] to pointsman.toml, so that it can be estimated.'

    def _without_former(self, used: Used) -> Used:
        """The part of this call.

        Agents add up the calls of a session only if the earlier ones ended regularly. They have done so if what is left without
        those is at least what the messages of this call have used. What is not known of the earlier calls is taken to be alike.
        """
        before, seen = self._before, sum(self._parts.values(), self._final)
        tokens_in = used.tokens_in - before.tokens_in
        if tokens_in < max(seen.tokens_in, 1):
            return used
        tokens_out, cost = max(used.tokens_out - before.tokens_out, 0), used.cost_usd
        if cost is not None:
            share = cost * tokens_in / used.tokens_in
            cost = (cost - before.cost_usd if cost >= before.cost_usd else share).quantize(SMALLEST_USD)
        cached = used.cached_tokens_in * tokens_in // used.tokens_in
        return replace(used, tokens_in=tokens_in, tokens_out=tokens_out, cost_usd=cost, cached_tokens_in=cached)

    def _rate(self, used: Used) -> Figures:
        """The figures of an event. A cost of 0 for tokens that have a price means that the agent does not know the price."""
        cost, guess = used.cost_usd, None
        model = used.model or self._model
        if not cost and (used.tokens_in or used.tokens_out):
            usage = ModelUsage(model or "", used.tokens_in, used.tokens_out, used.cached_tokens_in)
            guess = estimate(usage, self._prices)
            if guess is None and cost is None and used.key is None:
                self._unpriced = model or ""
        return Figures(used.tokens_in, used.tokens_out, guess or cost or ZERO_USD, guess or ZERO_USD)

    def _count(self, total: Figures) -> Usage:
        before = self._counted
        self._counted = after = Figures(
            max(before.tokens_in, min(total.tokens_in, MAX_TOKENS)),
            max(before.tokens_out, min(total.tokens_out, MAX_TOKENS)),
            max(before.cost_usd, total.cost_usd) if total.cost_usd < MAX_USD else before.cost_usd,
        )
        cost = after.cost_usd - before.cost_usd
        return Usage(
            cost,
            after.tokens_in - before.tokens_in,
            after.tokens_out - before.tokens_out,
            is_estimated=bool(cost and total.estimated_usd),
        )
