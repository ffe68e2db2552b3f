"""Calls: what an engine elsewhere can be asked for by name, and how arguments and answers are written as JSON.

    engine.get_run("run_1")  ──▶  get_run {"run_id": "run_1"}  ──▶  the same method, in the process of a server

Operations are declared in `engine/operations/`. Queries are the methods of `Queries`; their parameters and answers are the
declaration. A server and an engine of the room `remote` read it. They understand each other if it is the same on both sides,
and both have the same minor version of Pointsman.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from pointsman import __version__
from pointsman.engine.call_table import DIGEST
from pointsman.engine.engine import Engine
from pointsman.engine.operation import Operation, answer_type
from pointsman.engine.operations import OPERATIONS
from pointsman.engine.operations.attempts import ReportAttempts
from pointsman.engine.outbox import Outbox
from pointsman.engine.pages import place_of
from pointsman.engine.queries import Queries
from pointsman.errors import Problem, RequestInvalid

VERSION_HEADER = "Pointsman-Version"
SPOKEN = f"{__version__} {DIGEST}"
"""What a client sends in that header: its version, and the digest of its calls."""
TENANT_HEADER = "Pointsman-Tenant"
"""The tenant that a call is about, where that is not the one of who asks: operators add tenants and set their limits."""
AGENT_HEADER = "Pointsman-Agent"
"""Of a log that is the stream of a coding agent: its name."""
NOT_CALLED = ("get_machine", "list_machines")
"""Machines are no JSON: an engine elsewhere makes them of their definitions."""
OF_ALL_TENANTS = (
    "list_tenants",
    "measure_tenants",
    "list_all_keys",
    "list_duty_failures",
    "list_all_transitions",
    "diagnose",
    "audit",
    "repair",
    "seal",
)
OF_OUTBOX = ("list_entries", "find_entries")
TEXTS = ("title", "description")
"""Of a schema: they are for people."""
GET_HOLDER = "get_holder"
"""The call that answers with a `Holder`."""


class Holder(Struct, frozen=True, kw_only=True):
    """For whom a server acts when this client asks."""

    tenant: str
    actor: str
    has_key: bool
    """An API key says who asks. Without one, the client says it."""
    scopes: tuple[str, ...] = ()
    """Of the key."""


@dataclass(frozen=True, slots=True)
class Query:
    """A method that is called with arguments by name."""

    name: str
    """Of the method; of one of the outbox, `outbox.` and the name."""
    parameters: Mapping[str, Any]
    """By name: the type."""
    needed: frozenset[str]
    """Parameters without a default."""
    answers: Any
    is_of_all: bool = False
    """It is about the whole database, not about one tenant."""
    place: type[Struct] | None = None
    """It answers with the whole list where no limit is given, and this says how the list is sorted."""

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that decoded JSON stands for, or every problem with them."""
        problems = [Problem(name, "There is no such argument.") for name in body if name not in self.parameters]
        problems += [Problem(name, "It is missing.") for name in sorted(self.needed - body.keys())]
        arguments = {}
        for name in body.keys() & self.parameters.keys():
            try:
                arguments[name] = msgspec.convert(body[name], self.parameters[name])
            except msgspec.ValidationError as error:
                problems.append(Problem(name, f"{error}."))
        if problems:
            raise RequestInvalid(problems)
        return arguments


@cache
def list_queries() -> Mapping[str, Query]:
    """Every query by its name."""
    own = (name for name, method in vars(Queries).items() if inspect.iscoroutinefunction(method) and name[0] != "_")
    named = {name: _declare(Queries, name) for name in own if name not in NOT_CALLED}
    of_outbox = {each.name: each for each in (_declare(Outbox, name, "outbox.") for name in OF_OUTBOX)}
    return named | of_outbox | {name: replace(_declare(Engine, name), is_of_all=True) for name in OF_ALL_TENANTS}


def _declare(owner: type[Queries | Outbox], name: str, prefix: str = "") -> Query:
    method = getattr(owner, name)
    hints = get_type_hints(method, include_extras=True)
    answers = hints.pop("return")
    given = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
    needed = frozenset(each.name for each in given if each.default is inspect.Parameter.empty)
    is_whole = any(each.name == "limit" and each.default is None for each in given)
    place = place_of(method) if is_whole else None
    return Query(f"{prefix}{name}", {each.name: hints[each.name] for each in given}, needed, answers, place=place)


def bind(query: Query, arguments: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, as JSON can have them."""
    by_name = dict(zip(query.parameters, arguments, strict=False)) | dict(named)
    return {name: msgspec.to_builtins(value) for name, value in by_name.items()}


def find_answer_type(operation: type[Operation[Any]]) -> Any:
    """The type of the JSON that an operation answers with; a refused report is the problem document of its error."""
    return list[dict[str, Any] | None] if operation is ReportAttempts else answer_type(operation)


def understands(spoken: str) -> bool:
    """Whether calls of a client with this header mean the same here."""
    version, _, digest = spoken.partition(" ")
    return digest == DIGEST and version.split(".")[:2] == __version__.split(".")[:2]


def describe_calls() -> str:
    """All calls with the schemas of their arguments and answers, but without texts: the same text means the same calls."""
    calls: dict[str, tuple[Any, ...]] = {name: (each, find_answer_type(each)) for name, each in OPERATIONS.items()}
    calls |= {name: (*each.parameters.values(), each.answers) for name, each in list_queries().items()}
    kinds = [kind for name in sorted(calls) for kind in calls[name]]
    schemas, components = msgspec.json.schema_components(kinds)
    described = iter(schemas)
    table = {name: [next(described) for _ in calls[name]] for name in sorted(calls)}
    parameters = {name: (list(each.parameters), sorted(each.needed)) for name, each in list_queries().items()}
    return msgspec.json.encode(_without_texts((table, parameters, components)), order="deterministic").decode()


def _without_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_texts(each) for name, each in value.items() if not (name in TEXTS and isinstance(each, str))}
    return [_without_texts(each) for each in value] if isinstance(value, list | tuple) else value
