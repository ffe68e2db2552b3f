"""What an operation is: a request to the engine as a value, declared once.

Its fields, with their types and descriptions, are the declaration. Validation with every problem at once, the hash behind an
idempotency key, JSON decoding and JSON Schema follow from it (`engine/fields.py`); so do the methods of the engine.

An operation may be decided more than once, when its transaction has to be tried again. It changes nothing but the `Work` that
it is given, and when it raises it has changed nothing at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pointsman.engine.fields import HIDDEN, Name, Schema, Text, shape_of
from pointsman.engine.work import Cause, Work
from pointsman.errors import Problem, RequestInvalid
from pointsman.store.rows import PlainReport

Answer = TypeVar("Answer")
Op = TypeVar("Op", bound="Operation[Any]")
DEFAULT_TENANT = "default"
KEY_LASTS_SECONDS = 3600.0


class Caller(Struct, frozen=True):
    """For whom an operation is performed, and who asks for it."""

    tenant: Name = DEFAULT_TENANT
    actor: Name = "user"
    traceparent: Name | None = None
    """The span in which it asks."""
    key_id: Name | None = None
    """Its API key; None for those who have the database, or reach the server without a key."""


class Receipt(Struct):
    """What a caller learns beside the answer."""

    is_repeated: bool = False
    """The answer is the stored one of an earlier request with the same idempotency key."""


class RemoteCaller(Caller, frozen=True, kw_only=True):
    """The caller of a route of a server. Its idempotency keys count for that route, and stand for what was sent to it."""

    endpoint: str
    request_hash: str
    receipt: Receipt


ANYBODY = Caller()


@dataclass(frozen=True, slots=True)
class Request:
    """Makes an operation safe to repeat: the same key and the same request give the same answer, and only one effect."""

    endpoint: str
    key: str
    request_hash: str
    lasts_seconds: float | None = KEY_LASTS_SECONDS
    """None: for good."""


class Needs(Struct, frozen=True):
    """What has to be locked and read before a batch is decided."""

    task_ids: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    worker_ids: tuple[str, ...] = ()
    adds_work: bool = False
    """It may add runs or tasks, which count towards the quotas of the tenant."""
    held_by: tuple[str, ...] = ()
    """Workers whose tasks may be taken from them."""
    reports: tuple[PlainReport, ...] = ()
    """What ends attempts with success: those of plain tasks need not be read."""


class Stage(IntEnum):
    """The place of an operation in its batch."""

    SIGNALS = 0
    CLAIMS = 1
    """After the signals, so that a claim sees the slots that they free: a worker finishes and claims in one commit."""


class Operation(Struct, Generic[Answer], frozen=True, kw_only=True):
    """A request to the engine."""

    stage: ClassVar[Stage] = Stage.SIGNALS
    shares_transaction: ClassVar[bool] = True
    """False for what locks rows as it finds them, and so must hold nothing before."""

    is_bounded: ClassVar[bool] = True
    """False for heartbeats and upkeep: to refuse them when the writer is overloaded would only cause more work."""

    begins_work: ClassVar[bool] = False
    """It may add or start tasks: a worker that waits for some claims in the same commit."""

    key_lasts_seconds: ClassVar[float | None] = KEY_LASTS_SECONDS
    """How long the answer to an idempotency key is kept; None for good."""

    caller: Annotated[Caller, HIDDEN] = ANYBODY
    request_id: Annotated[Name | None, "An idempotency key: the same key and request have one effect and one answer."] = None

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, work: Work) -> Callable[[], Answer]:
        """Do it; what is returned gives the answer, when everything has followed."""
        raise NotImplementedError

    def check(self, found: Sequence[Problem]) -> Iterable[Problem]:  # noqa: ARG002 - for those that have something to check
        """Problems that only several fields together have; `found` are those of single fields."""
        return ()

    def redact(self, answer: Answer) -> Answer:
        """The answer as it is stored with an idempotency key: without what may be shown only once."""
        return answer

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    @property
    def request(self) -> Request | None:
        if self.request_id is None:
            return None
        if isinstance(caller := self.caller, RemoteCaller):
            return Request(caller.endpoint, self.request_id, caller.request_hash, self.key_lasts_seconds)
        bare = replace(self, caller=ANYBODY, request_id=None)
        request_hash = hashlib.sha256(msgspec.json.encode(bare, order="deterministic")).hexdigest()
        return Request(name_of(type(self)), self.request_id, request_hash, self.key_lasts_seconds)


class Recorded(Operation[Answer], Generic[Answer], frozen=True, kw_only=True):
    """An operation that the audit trail keeps with its reason."""

    reason: Annotated[Text | None, "Why; kept in the audit trail."] = None

    @property
    def cause(self) -> Cause:
        return Cause(self.caller.actor, self.reason)


@lru_cache(maxsize=128)
def name_of(operation: type[Operation[Any]]) -> str:
    """`SubmitRun` is `submit_run`: the method of the engine, the route, the endpoint of its keys."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation.__name__).lower()


@lru_cache(maxsize=128)
def answer_type(operation: type[Operation[Any]]) -> Any:
    """What it answers: the argument of `Operation` where the class is declared."""
    for declared in operation.__mro__:
        for base in declared.__dict__.get("__orig_bases__", ()):
            if arguments := [each for each in get_args(base) if not isinstance(each, TypeVar)]:
                return arguments[0]
    raise TypeError(f"{operation.__name__} does not say what it answers: derive it from Operation[…].")


def validate(operation: Operation[Any]) -> None:
    """Refuse an operation with every problem that can be seen without the database."""
    problems = list(shape_of(type(operation)).problems("", operation))
    problems += operation.check(problems)
    if problems:
        raise RequestInvalid(problems)


def read_operation(operation: type[Op], body: object) -> Op:
    """The operation that decoded JSON asks for, or every problem with it. It needs no further validation."""
    problems: list[Problem] = []
    found = shape_of(operation).read("", body, problems)
    if not problems:
        assert isinstance(found, operation)
        problems += found.check(())
    if problems:
        raise RequestInvalid(problems)
    assert isinstance(found, operation)
    return found


def write_operation(operation: Operation[Any]) -> dict[str, Any]:
    """The body that `read_operation` makes this operation of, but for its caller."""
    return shape_of(type(operation)).write(operation)


def schema_of(operation: type[Operation[Any]]) -> Schema:
    """JSON Schema of the body that `read_operation` takes."""
    return shape_of(operation).schema()
