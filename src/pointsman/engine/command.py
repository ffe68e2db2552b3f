"""What a command is: what it needs to have in hand, and what it decides.

A command may be decided more than once, when its transaction has to be tried again; it changes nothing but the `Work` it is
given, and when it raises it has changed nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from pointsman.engine.work import Work

Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Request:
    """Makes a command safe to repeat: the same key and the same request give the same answer, and only one effect."""

    endpoint: str
    key: str
    request_hash: str
    lasts_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be locked and read before a batch is decided."""

    task_ids: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    worker_ids: tuple[str, ...] = ()
    subtasks_of: tuple[str, ...] = ()
    """Tasks whose subtasks matter."""
    held_by: tuple[str, ...] = ()
    """Workers whose tasks may be taken from them."""
    together: tuple[tuple[str, int], ...] = ()
    """Of the tasks, those of which the same is reported, with the epochs of their attempts: they may go together."""


class Command(Protocol[Answer_co]):
    answer_type: ClassVar[Any]

    @property
    def tenant(self) -> str: ...
    @property
    def request(self) -> Request | None: ...

    @property
    def needs(self) -> Needs: ...
    def decide(self, work: Work) -> Callable[[], Answer_co]:
        """Do it; what is returned gives the answer, when everything has followed."""
        ...
