"""The words that a lifecycle file may use, as a value for the loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pointsman.kernel.machine import Kind

Predicate = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals of one kind of entity, each with its meaning."""

    required: Mapping[str, str]
    """A machine of this kind must handle these, itself or by a fallback."""
    optional: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.required or name in self.optional

    def __iter__(self) -> Iterator[str]:
        yield from self.required
        yield from self.optional


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every guard, effect, need and signal that a lifecycle file may name."""

    guards: Mapping[str, Predicate]
    effects: Mapping[str, str]
    needs: Mapping[str, str]
    signals: Mapping[Kind, Signals]
