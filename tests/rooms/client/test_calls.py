"""The methods that are written from the routes: all of them, the same for both clients, with answers that can be read."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from tests.rows import each_row

from pointsman.client import answers
from pointsman.client.async_calls import AsyncRoutes
from pointsman.client.async_client import AsyncClient
from pointsman.client.calls import Routes
from pointsman.client.client import Client
from pointsman.server.client_code import PREFIX, list_methods
from pointsman.server.events import TYPES
from pointsman.server.openapi import load_examples
from pointsman.server.routes import ALL

BY_HAND = {"stream_events": "events", "read_log": "read_log", "read_artifact": "read_artifact"}
"""Routes that stream, and the methods that follow them."""


def public(client: type) -> dict[str, Any]:
    return {name: each for name, each in inspect.getmembers(client, inspect.isfunction) if not name.startswith("_")}


def test_each_route_has_a_method() -> None:
    names = {route.name for route in ALL if route.path.startswith(PREFIX) and not route.names_call}
    assert names == {method.name for method in list_methods()} | set(BY_HAND)
    assert {BY_HAND.get(name, name) for name in names} <= set(public(Client))


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    sync, other = public(Client), public(AsyncClient)
    assert set(sync) == set(other)
    for name in sync:
        assert inspect.signature(sync[name]).parameters == inspect.signature(other[name]).parameters, name
    ours, theirs = inspect.signature(Client).parameters, inspect.signature(AsyncClient).parameters
    assert dict(ours) == {name: each for name, each in theirs.items() if name != "threads"}
    for name, method in public(Routes).items():
        assert inspect.iscoroutinefunction(public(AsyncRoutes)[name]) is not name.startswith("iterate_"), name
        assert method.__doc__ == public(AsyncRoutes)[name].__doc__, name


@each_row("name", [method.name for method in list_methods()])
def test_the_example_of_each_answer_can_be_read_and_lacks_nothing(name: str) -> None:
    method = next(each for each in list_methods() if each.name == name)
    example = load_examples()["routes"][f"{method.route.method} {method.route.path}"]["answer"]
    if method.answer == "str":
        return
    kind = getattr(answers, method.answer)
    read, sent = (msgspec.convert(example, each, str_keys=True) for each in (kind, method.route.answers))
    assert keys_of(msgspec.to_builtins(read)) == keys_of(msgspec.to_builtins(sent))


def keys_of(value: Any) -> Any:
    """What it consists of, however it is written."""
    if isinstance(value, dict):
        return {name: keys_of(each) for name, each in value.items()}
    return [keys_of(each) for each in value] if isinstance(value, list | tuple) else None


def test_every_type_of_event_is_known() -> None:
    known = (answers.TransitionEvent, answers.TaskCompleted, answers.TaskQuestion)
    assert {each.__struct_config__.tag for each in known} == set(TYPES)


@pytest.mark.parametrize("name", ["requests", "answers", "calls", "async_calls"])
def test_what_is_written_says_so(name: str) -> None:
    module = __import__(f"pointsman.client.{name}", fromlist=[name])
    assert "make docs" in (module.__doc__ or "")
