"""Filters of lists, declared once: Python, HTTP and the command line read them here. The store has a condition for each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from pointsman.engine.fields import Instant, Name


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list: those that fulfill every condition."""

    state: Annotated[Name | None, "Only runs in this state."] = None
    phase: Annotated[Literal["held", "queued", "active", "done"] | None, "Only runs in this phase."] = None
    outcome: Annotated[Literal["success", "failure", "canceled"] | None, "Only runs that ended like this."] = None
    lifecycle: Annotated[Name | None, "Only runs that follow this lifecycle."] = None
    name: Annotated[Name | None, "Only runs of this name, which is that of their flow."] = None
    tag: Annotated[Name | None, "Only runs with this tag."] = None
    text: Annotated[Name | None, "Only runs with this text in their id, name, reason or error. Case matters."] = None
    created_after: Annotated[Instant | None, "Only runs that were created at this time or later."] = None
    created_before: Annotated[Instant | None, "Only runs that were created before this time."] = None


class TaskFilter(Struct, frozen=True, kw_only=True):
    """Which tasks to list: those that fulfill every condition."""

    state: Annotated[Name | None, "Only tasks in this state."] = None
    phase: Annotated[Literal["held", "queued", "active", "done"] | None, "Only tasks in this phase."] = None
    outcome: Annotated[Literal["success", "failure", "canceled"] | None, "Only tasks that ended like this."] = None
    lifecycle: Annotated[Name | None, "Only tasks that follow this lifecycle."] = None
    flow: Annotated[Name | None, "Only tasks of runs of this name, which is that of their flow."] = None
    name: Annotated[Name | None, "Only tasks of this name."] = None
    tag: Annotated[Name | None, "Only tasks of runs with this tag."] = None
    text: Annotated[Name | None, "Only tasks with this text in their id, name, reason or error. Case matters."] = None
    created_after: Annotated[Instant | None, "Only tasks of runs that were created at this time or later."] = None
    created_before: Annotated[Instant | None, "Only tasks of runs that were created before this time."] = None


class WorkerFilter(Struct, frozen=True, kw_only=True):
    """Which workers to list: those that fulfill every condition."""

    state: Annotated[Name | None, "Only workers in this state."] = None
    phase: Annotated[
        Literal["held", "queued", "active", "done"] | None, "Only workers in this phase; those that have left are `done`."
    ] = None
    name: Annotated[Name | None, "Only workers of this name."] = None


class NoticeFilter(Struct, frozen=True, kw_only=True):
    """Which notices to list: those that fulfill every condition."""

    about: Annotated[Name | None, "Only those about the entity of this id; of a run, its tasks count as well."] = None
    subject: Annotated[Name | None, "Only those of this subject, such as `overstayed` or `budget`."] = None
    created_after: Annotated[Instant | None, "Only those of this time or later."] = None
    created_before: Annotated[Instant | None, "Only those before this time."] = None


class NotificationFilter(Struct, frozen=True, kw_only=True):
    """Which notifications to list."""

    delivery: Annotated[
        Literal["due", "dead", "delivered"] | None, "Only those in this state; dead ones are not tried any more."
    ] = None


class NoFilter(Struct, frozen=True, kw_only=True):
    """No condition."""


EVERYTHING = NoFilter()
EVERY_RUN = RunFilter()
EVERY_TASK = TaskFilter()
EVERY_WORKER = WorkerFilter()
EVERY_NOTICE = NoticeFilter()
EVERY_NOTIFICATION = NotificationFilter()
