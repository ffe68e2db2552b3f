"""The Python client as source: a method for each route of /api/v1, sync and async, and the types that they take and return.

`make docs` writes it to `pointsman/client/`, which may import nothing of the server: requests.py, answers.py, calls.py and
async_calls.py. Routes that stream have no method here, because the client does more for them than send a request. The
one for Pointsman itself has none, because its answers differ between versions.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec import inspect as types

from pointsman.engine.fields import HIDDEN, INLINE, shape_of
from pointsman.server.openapi import PATH_PARAMETERS
from pointsman.server.route import Route
from pointsman.server.routes import ALL

PREFIX = "/api/v1/"
WIDTH = 120
WRITTEN = "Written from the declarations of the routes by `make docs`."
IMPORTS = """\
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Literal
from msgspec import Struct, field"""
CALL_IMPORTS = """\
from pointsman.client.session import Calls, given, iterate, iterate_async, segment
from pointsman.client.threads import AsyncCalls"""
"""What a module does not need of these is taken out by ruff, which also sorts them and lays the code out."""
LEAVES: dict[type[types.Type], str] = {
    types.StrType: "str",
    types.IntType: "int",
    types.FloatType: "float",
    types.BoolType: "bool",
    types.DecimalType: "Decimal",
    types.DateTimeType: "datetime",
    types.AnyType: "Any",
    types.NoneType: "None",
    types.EnumType: "str",  # a later server may have more of them
    types.LiteralType: "str",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of a method, or a field of a request."""

    name: str
    hint: str
    default: Any
    description: str

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT

    def declare(self) -> str:
        """As a parameter. A struct cannot be a default there: without it, the server has the same one."""
        if isinstance(self.default, Struct):
            return f"{self.name}: {self.hint} | None = None"
        return f"{self.name}: {self.hint}" + ("" if self.is_required else f" = {write_value(self.default)}")

    def describe(self) -> list[str]:
        text = f"{self.name}: {self.description}" if self.description else ""
        return wrap(text, 8, "    ")


@dataclass(frozen=True, slots=True)
class Method:
    """A route as a method of the client."""

    route: Route
    path: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    body: tuple[Parameter, ...] = ()

    @property
    def name(self) -> str:
        return self.route.name

    @property
    def answer(self) -> str:
        return self.route.answers.__name__ if isinstance(self.route.answers, type) else "object"

    @property
    def takes_key(self) -> bool:
        return self.route.changes and self.route.operation is not None

    @property
    def options(self) -> tuple[Parameter, ...]:
        key = Parameter("request_id", "str | None", None, "An idempotency key of your own, instead of a new one.")
        return (*self.query, *self.body, *((key,) if self.takes_key else ()))

    @property
    def item(self) -> str | None:
        """Of pages: the type of what is on them."""
        if "after" not in {each.name for each in self.query}:
            return None
        info = types.type_info(self.route.answers)
        assert isinstance(info, types.StructType)
        (items,) = [each.type for each in info.fields if each.name == "items"]
        assert isinstance(items, types.VarTupleType)
        assert isinstance(items.item_type, types.StructType)
        return items.item_type.cls.__name__

    @property
    def iterator(self) -> str:
        """`list_runs` gives a page, `iterate_runs` all runs."""
        return f"iterate_{self.name.partition('_')[2]}"


@dataclass(slots=True)
class Structs:
    """The structs of requests or of answers, each behind those that it consists of."""

    found: dict[str, str] = field(default_factory=dict)

    def add(self, struct: type[Struct], source: str) -> None:
        assert self.found.setdefault(struct.__name__, source) in ("", source), f"two structs are called {struct.__name__}"


@cache
def list_methods() -> tuple[Method, ...]:
    requests = Structs()
    methods = [
        make_method(route, requests)
        for route in ALL
        if route.path.startswith(PREFIX) and not (route.streams or route.takes_range or route.names_call)
    ]
    names = [method.name for method in methods]
    assert len(names) == len(set(names)), "each route has a name of its own: see Route.named"
    return tuple(methods)


def make_method(route: Route, requests: Structs) -> Method:
    body = tuple(list_fields(route.reads, requests)) if route.reads else ()
    described = {each.name: each.description for each in body}
    path = tuple(Parameter(name, "str", NODEFAULT, described.get(name) or PATH_PARAMETERS[name]) for name in route.parameters)
    left_out = {*route.parameters, *route.fixed, "request_id"}
    return Method(
        route,
        path,
        tuple(list_fields(route.query, requests)),
        tuple(each for each in body if each.name not in left_out),
    )


# requests


def list_fields(struct: type[Struct], requests: Structs) -> Iterator[Parameter]:
    """What may be sent, required fields first."""
    found = list(_list_fields(struct, requests))
    yield from (each for each in found if each.is_required)
    yield from (each for each in found if not each.is_required)


def _list_fields(struct: type[Struct], requests: Structs) -> Iterator[Parameter]:
    hints = get_type_hints(struct, include_extras=True)
    for each in shape_of(struct).fields:
        if INLINE in each.marks:
            (inner,) = [hint for hint in get_args(hints[each.name]) if isinstance(hint, type)]
            yield from _list_fields(inner, requests)
        elif HIDDEN not in each.marks:
            assert each.default is None or "None" not in spell_hint(hints[each.name], requests).split(" | ") or each.is_required
            yield Parameter(each.name, spell_hint(hints[each.name], requests), each.default, each.description)


def spell_hint(hint: Any, requests: Structs) -> str:
    """The type of a field of a request, without the rules that only the server checks."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return spell_hint(arguments[0], requests)
    if origin in (Union, UnionType):
        return " | ".join(spell_hint(each, requests) for each in arguments)
    if origin is Literal:
        return f"Literal[{', '.join(write_value(each) for each in arguments)}]"
    if origin is dict:
        return f"dict[{', '.join(spell_hint(each, requests) for each in arguments)}]"
    if origin is tuple or (origin is not None and issubclass(origin, Collection)):
        return f"{'Sequence' if origin is tuple else origin.__name__}[{spell_hint(arguments[0], requests)}]"
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"Literal[{', '.join(write_value(each.value) for each in hint)}]"
    if isinstance(hint, type) and issubclass(hint, Struct):
        requests.found.pop("", None)
        requests.add(hint, write_request(hint, requests))
    return str(hint.__name__)


def write_request(struct: type[Struct], requests: Structs) -> str:
    lines = [f"class {struct.__name__}(Struct, frozen=True, kw_only=True, omit_defaults=True):", *write_doc(struct)]
    for each in list_fields(struct, requests):
        lines.append(f"    {each.name}: {each.hint}" + ("" if each.is_required else f" = {write_value(each.default)}"))
        lines += quote([each.description], 4) if each.description else []
    return "\n".join(lines)


# answers


def spell_answer(info: types.Type, answers: Structs) -> str:
    match info:
        case types.StructType(cls=struct):
            if struct.__name__ not in answers.found:
                answers.add(struct, "")
                source = write_answer(info, answers)
                del answers.found[struct.__name__]  # behind those that it consists of
                answers.add(struct, source)
            return struct.__name__
        case types.UnionType(types=options):
            spelled = [spell_answer(each, answers) for each in options]
            return " | ".join([*(each for each in spelled if each != "None"), *(each for each in spelled if each == "None")])
        case types.VarTupleType(item_type=item) | types.ListType(item_type=item):
            return f"tuple[{spell_answer(item, answers)}, ...]"
        case types.DictType(key_type=key, value_type=value):
            return f"dict[{spell_answer(key, answers)}, {spell_answer(value, answers)}]"
        case _:
            return LEAVES[type(info)]


def write_answer(info: types.StructType, answers: Structs) -> str:
    assert not info.array_like
    tagged = f', tag_field="{info.tag_field}", tag="{info.tag}"' if info.tag_field else ""
    lines = [f"class {info.cls.__name__}(Struct, frozen=True, kw_only=True{tagged}):", *write_doc(info.cls)]
    described = find_docs(info.cls)
    for each in info.fields:
        lines.append(f"    {each.name}: {spell_answer(each.type, answers)}{write_default(each)}")
        lines += quote(described[each.name], 4) if each.name in described else []
    return "\n".join(lines)


def write_default(described: types.Field) -> str:
    assert described.default_factory is NODEFAULT
    default = "" if described.default is NODEFAULT else write_value(described.default)
    if described.name == described.encode_name:
        return f" = {default}" if default else ""
    return f' = field({f"default={default}, " if default else ""}name="{described.encode_name}")'


def find_docs(struct: type[Struct]) -> dict[str, list[str]]:
    """The texts below the fields, which Python does not keep."""
    found: dict[str, list[str]] = {}
    for each in reversed(struct.__mro__[:-1]):
        if not issubclass(each, Struct) or each is Struct:
            continue
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(declared, ast.ClassDef)
        name = ""
        for statement in declared.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    pass
                case ast.Expr(value=ast.Constant(value=str(text))) if name:
                    found[name] = inspect.cleandoc(text).splitlines()
    return found


# source


def write_value(value: Any) -> str:
    if isinstance(value, Struct):
        assert value == type(value)(), "a default that is not that of the struct itself"
        return f"{type(value).__name__}()"
    if isinstance(value, Decimal):
        return f"Decimal({int(value)})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def quote(paragraphs: Sequence[str], indent: int) -> list[str]:
    """A docstring. What does not fit into one line has its end on a line of its own."""
    lines = [line for text in paragraphs for line in (wrap(text, indent) or [""])]
    space = " " * indent
    quoted = [f'{space}"""{lines[0]}', *(f"{space}{line}".rstrip() for line in lines[1:])]
    return [f'{quoted[0]}"""'] if len(lines) == 1 else [*quoted, f'{space}"""']


def wrap(text: str, indent: int, hanging: str = "") -> list[str]:
    width = WIDTH - indent
    return textwrap.wrap(text, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


def write_doc(struct: type[Struct]) -> list[str]:
    text = vars(struct).get("__doc__")
    return [*quote(inspect.cleandoc(text).split("\n"), 4), ""] if text else []


def write_module(title: str, imports: str, parts: Iterable[str]) -> str:
    return "\n\n".join((f'"""{title} {WRITTEN}"""', "from __future__ import annotations", imports, *parts)) + "\n"


def write_requests() -> str:
    requests = Structs()
    for method in list_methods():
        make_method(method.route, requests)
    return write_module("What requests consist of.", IMPORTS, requests.found.values())


def write_answers() -> str:
    answers = Structs()
    for route in ALL:
        if route.path.startswith(PREFIX):
            spell_answer(types.type_info(route.answers), answers)
    return write_module("What the server answers.", IMPORTS, answers.found.values())


def write_calls(*, is_async: bool) -> str:
    """The methods. Those of the async client call those of the other one in a thread."""
    requests, answers = Structs(), Structs()
    base, name = ("AsyncCalls", "AsyncRoutes") if is_async else ("Calls", "Routes")
    parts = [f"class {name}({base}):", '    """A method for each route of /api/v1."""']
    for method in list_methods():
        make_method(method.route, requests)
        spell_answer(types.type_info(method.route.answers), answers)
        parts.append(write_method(method, is_async=is_async))
        if method.item:
            parts.append(write_iterator(method, is_async=is_async))
    imports = "\n".join(
        (
            IMPORTS,
            f"from pointsman.client.answers import {', '.join(answers.found)}",
            f"from pointsman.client.requests import {', '.join(requests.found)}",
            CALL_IMPORTS,
        )
    )
    return write_module("The routes of the server as methods.", imports, parts)


def write_method(method: Method, *, is_async: bool) -> str:
    lines = write_head(method, method.name, method.path, method.options, method.answer, is_async=is_async)
    if is_async:
        call = ", ".join((f"self._client.{method.name}", *(each.name for each in method.path), *pass_on(method.options)))
        return "\n".join((*lines, f"        return await self._run({call})"))
    path = method.route.path
    for each in method.path:
        path = path.replace(f"{{{each.name}}}", f"{{segment({each.name})}}")
    sent = [write_sent("query", method.query), write_sent("body", method.body), "request_id=request_id" * method.takes_key]
    call = ", ".join((f'"{method.route.method}", {"f" * bool(method.path)}"{path}", {method.answer}', *filter(None, sent)))
    return "\n".join((*lines, f"        return self._send({call})"))


def write_iterator(method: Method, *, is_async: bool) -> str:
    """All that a route lists, page by page."""
    options = [each for each in method.options if each.name != "limit"]
    answer = f"{'Async' * is_async}Iterator[{method.item}]"
    lines = write_head(method, method.iterator, method.path, options, answer, is_async=False)
    given = (each.name for each in method.path)
    pages = ", ".join((f"self.{method.name}", *given, *pass_on(each for each in options if each.name != "after")))
    return "\n".join((*lines, f"        return {'iterate_async' if is_async else 'iterate'}(partial({pages}), after)"))


def write_head(
    method: Method, name: str, path: Sequence[Parameter], options: Sequence[Parameter], answer: str, *, is_async: bool
) -> list[str]:
    """The signature and the docstring."""
    given = ["self", *(f"{each.name}: str" for each in path), *["*"][: len(options)], *(each.declare() for each in options)]
    summary = wrap(f"{explain(method.route.summary)} Needs the scope `{method.route.scope}`.", 11)
    described = [line for each in (*path, *options) for line in each.describe()]
    inside = [*summary[1:], *(["", *described] if described else [])]
    return [
        f"    {'async ' * is_async}def {name}({', '.join(given)}) -> {answer}:",
        f'        """{summary[0]}' + ("" if inside else '"""'),
        *(f"        {line}".rstrip() for line in inside),
        *(['        """'] if inside else []),
    ]


def explain(summary: str) -> str:
    """What a route is for, where it names others by their methods."""
    for method in sorted(list_methods(), key=lambda method: -len(method.route.path)):
        summary = summary.replace(method.route.path, f"`{method.name}`")
    return summary


def pass_on(parameters: Iterable[Parameter]) -> Iterator[str]:
    return (f"{each.name}={each.name}" for each in parameters)


def write_sent(name: str, fields: Sequence[Parameter]) -> str:
    """What is sent: a field that is None is left out, unless it is required."""
    if not fields:
        return ""
    required = [f'"{each.name}": {each.name}' for each in fields if each.is_required]
    optional = ", ".join(pass_on(each for each in fields if not each.is_required))
    return f"{name}={{{', '.join([*required, *([f'**given({optional})'] if optional else [])])}}}"
