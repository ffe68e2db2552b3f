"""The Python client of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "AsyncClient",
    "Backoff",
    "Client",
    "Event",
    "NewTask",
    "RunFilter",
    "TaskCompleted",
    "TaskQuestion",
    "TransitionEvent",
]

if TYPE_CHECKING:
    from pointsman.client.answers import TaskCompleted, TaskQuestion, TransitionEvent
    from pointsman.client.async_client import AsyncClient
    from pointsman.client.client import Client
    from pointsman.client.requests import Backoff, NewTask, RunFilter
    from pointsman.client.stream import Event

_HOMES = {
    "AsyncClient": "pointsman.client.async_client",
    "Backoff": "pointsman.client.requests",
    "Client": "pointsman.client.client",
    "Event": "pointsman.client.stream",
    "NewTask": "pointsman.client.requests",
    "RunFilter": "pointsman.client.requests",
    "TaskCompleted": "pointsman.client.answers",
    "TaskQuestion": "pointsman.client.answers",
    "TransitionEvent": "pointsman.client.answers",
}


def __getattr__(name: str) -> object:
    """Load on first use: what sends single requests needs the transport only."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pointsman.client' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
