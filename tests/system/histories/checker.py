"""Whether some legal order explains a history (Wing and Gong's search, with a memory of where it has been, as Knossos has it).

An order is legal if each operation comes between its call and its return, and the model allows every answer. What returned
must have a place; what nobody knows the end of may have one, any time after its call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
from tests.system.histories.model import Model, Operation
from tests.system.histories.models import all_models
from tests.system.histories.record import Record

S = TypeVar("S")
MOST_STATES = 500_000
"""A search that has been in more places than that is given up, loudly."""
CLOCK_SLACK_SECONDS = 0.05
"""How much the clock of the database may gain on ours during a test."""


class Unexplained(AssertionError):
    """No legal order explains a history; the message has the shortest part of it that already has none."""


class TooManyOrders(AssertionError):
    """The search was given up."""


def check_history(records: Iterable[Record], *, timed: bool = True) -> int:
    """Hold a history against every model; how many operations were looked at.

    `timed` says that the times of the records are seconds of a clock that runs like the database's; otherwise they order
    operations, and no lease, cooldown or timer is expected to last. Tasks of other lifecycles than `standard` and `supervised`
    have no model yet and are passed over; so is what was asked for by `transition`, which these models do not know.
    """
    records = sorted(records, key=lambda record: record.invoked_at)
    checked = 0
    for model in all_models(records):
        check_model(model, timed=timed)
        checked += len(model.operations)
    return checked


def check_model(model: Model[Any], *, timed: bool = True, most_states: int = MOST_STATES) -> None:
    if next(_until(model, math.inf, timed=timed, most_states=most_states).final_states(), None) is None:
        raise Unexplained(_report(model, timed=timed))


@dataclass(slots=True)
class _Search(Generic[S]):
    """The places to look at: which operations have had their turn (one bit each), and the state after them."""

    model: Model[S]
    operations: Sequence[Operation]
    heard: Sequence[bool]
    timed: bool
    most_states: int = MOST_STATES
    _numbers: dict[Operation, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = {operation: number for number, operation in enumerate(self.operations)}

    def final_states(self) -> Iterator[S]:
        """The states after every order that explains what was heard, each once."""
        wanted = sum(1 << index for index, heard in enumerate(self.heard) if heard)
        places = [(0, self.model.start)]
        seen = set(places)
        found: set[S] = set()
        while places:
            taken, state = places.pop()
            if taken & wanted == wanted and state not in found:
                found.add(state)
                yield state
            for place in self._next(taken, state):
                if place not in seen:
                    seen.add(place)
                    places.append(place)
            if len(seen) > self.most_states:
                raise TooManyOrders(f"{self.model.subject}: too many orders to try. Record fewer operations at once.")

    def _next(self, taken: int, state: S) -> list[tuple[int, S]]:
        eligible, first_return = self._eligible(taken)
        places = [
            (taken, drifted)
            for drifted in self.model.drift(state)
            if not self.timed or self.model.not_before(drifted) <= first_return + CLOCK_SLACK_SECONDS
        ]
        for number in eligible:
            operation = self.operations[number]
            if self.timed and operation.returned_at + CLOCK_SLACK_SECONDS < self.model.not_before(state):
                continue
            heard = self.heard[number]
            following = list(self.model.take(state, operation, heard=heard))
            if heard and operation.changes_nothing and following == [state]:
                # What never changes anything may as well come now: whatever follows would follow all the same.
                return [(taken | 1 << number, state)]
            places += [(taken | 1 << number, each) for each in following if heard or each != state]
        return places

    def _eligible(self, taken: int) -> tuple[list[int], float]:
        """Whose turn it may be, because nothing is left that returned before they began; and when the next one returns."""
        first_return = math.inf
        found = []
        for number, operation in enumerate(self.operations):
            if taken >> number & 1:
                continue
            if operation.invoked_at > first_return:
                break
            if operation.after is None or taken >> self._numbers[operation.after] & 1:
                found.append(number)
            if self.heard[number]:
                first_return = min(first_return, operation.returned_at)
        return [number for number in found if self.operations[number].invoked_at <= first_return], first_return


def _until(model: Model[S], instant: float, *, timed: bool, most_states: int = MOST_STATES) -> _Search[S]:
    """The history up to an instant: what had not returned by then had no known end."""
    operations = [
        operation
        for operation in sorted(model.operations, key=lambda each: each.invoked_at)
        if operation.invoked_at <= instant and (operation.after is None or operation.returned_at <= instant)
    ]
    heard = [each.returned_at <= instant and each.has_to_be for each in operations]
    return _Search(model, operations, heard, timed, most_states)


def _explain(model: Model[Any], instant: float, *, timed: bool) -> bool:
    return next(_until(model, instant, timed=timed).final_states(), None) is not None


def _report(model: Model[Any], *, timed: bool) -> str:
    """Every part of a history that can be explained has only parts that can: halve it until the first that cannot is found."""
    returns = sorted({operation.returned_at for operation in model.operations if not operation.is_unknown})
    low, high = 0, len(returns) - 1
    while low < high:
        middle = (low + high) // 2
        if _explain(model, returns[middle], timed=timed):
            low = middle + 1
        else:
            high = middle
    lines = [f"{model.subject}: no legal order explains this history."]
    before = list(islice(_until(model, returns[low - 1], timed=timed).final_states(), 10)) if low else [model.start]
    prefix = _until(model, returns[low], timed=timed)
    origin = prefix.operations[0].invoked_at
    lines += [_line(each, origin, returns[low]) for each in prefix.operations if each.after is None and not each.may_be_missing]
    lines += ["The last answer (✗) has no place; without it, the subject could have been:"]
    lines += sorted({f"    {state}" for state in before})
    return "\n".join(lines)


def _line(operation: Operation, origin: float, instant: float) -> str:
    record = operation.record
    returned = operation.returned_at <= instant
    end = f"{operation.returned_at - origin:9.4f}" if returned else "        …"
    mark = "✗" if operation.returned_at == instant else " "
    given = " ".join(f"{name}={_brief(value, 60)}" for name, value in record.arguments.items())
    outcome = (record.error or _heard(operation)) if returned else "unknown"
    return f" {mark} {operation.invoked_at - origin:9.4f} ─ {end}  {record.client:<12} {record.operation} {given} ⇒ {outcome}"


def _heard(operation: Operation) -> str:
    answer = operation.record.answer
    if isinstance(answer, dict) and "state" in answer:
        epoch = f", epoch {answer['epoch']}" if "epoch" in answer else ""
        return f"{answer['state']}{epoch}"
    return " ".join(f"{name}={_brief(value, 600)}" for name, value in operation.details.items() if value is not None) or "done"


def _brief(value: Any, most: int) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"
