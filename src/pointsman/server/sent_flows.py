"""Flows that clients send, or name as templates: each text is read and checked once.

text ──▶ known? ── no ──▶ a thread reads and checks it ──▶ SentFlow ──▶ NewRun ──▶ the engine
                                                                 └─────────────────▶ plan.json, dag.json
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pointsman.engine.operation import validate
from pointsman.engine.operations.runs import SubmitRun
from pointsman.engine.submit import NewRun
from pointsman.engine.together import Together
from pointsman.errors import Problem, RequestInvalid, UnknownName
from pointsman.flows.build import build_run
from pointsman.flows.document import read_document
from pointsman.flows.load import TEXT, load_with_lifecycle
from pointsman.flows.model import Flow
from pointsman.flows.plan import describe_files, write_files
from pointsman.kernel.machine import Kind, Lifecycle
from pointsman.lifecycles import DEFAULT, SHIPPED
from pointsman.settings import FOLDER, Settings

MOST_REMEMBERED = 64
WRITE_PLAN = "write_plan"
"""The effect of a lifecycle that keeps the plan of each run."""
LONGEST_REMEMBERED = 16_384
"""Characters. A flow takes about twenty times as much memory as its text."""

log = logging.getLogger(__name__)
Plan = tuple[Path, Mapping[str, str]]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SentFlow:
    """A valid flow."""

    text: str
    flow: Flow
    lifecycle: Lifecycle
    files: Mapping[str, str]
    """What describes each of its runs to people, by the names of the files; nothing where its lifecycle wants none."""

    @property
    def tools(self) -> list[str]:
        return [tool for name in self.flow.tasks if (tool := self.flow.task(name).tool_name)]


class GetLifecycle(Protocol):
    """Finds a lifecycle in the database, or raises UnknownName."""

    async def __call__(self, name: str) -> Lifecycle: ...


@dataclass(slots=True)
class SentFlows:
    """Reads flows for one project."""

    settings: Settings
    get_lifecycle: GetLifecycle
    _known: dict[str, SentFlow] = field(default_factory=dict)
    _runs: dict[str, NewRun] = field(default_factory=dict)
    """By text: the run without inputs, which is always the same."""
    _plans: Together[Plan] = field(default_factory=lambda: Together(_write_plans))

    async def load(self, text: str) -> SentFlow:
        """Read and check a flow, or raise with every finding. Valid ones are remembered, if their lifecycle cannot change."""
        if known := _recall(self._known, text):
            return known
        stored = await self._find_stored(await asyncio.to_thread(_read_lifecycle, text))
        loaded = await asyncio.to_thread(self._load, text, stored)
        if stored is None:
            _remember(self._known, text, loaded)
        return loaded

    async def _find_stored(self, name: str) -> Lifecycle | None:
        """Unless it is shipped. A flow that is sent names no file of this machine."""
        if name in SHIPPED:
            return None
        try:
            return await self.get_lifecycle(name)
        except UnknownName as unknown:
            message = f"{unknown} A flow that is sent follows a shipped lifecycle, or one that the operator has added."
            raise RequestInvalid([Problem("flow.lifecycle", message)]) from None

    async def build(self, sent: SentFlow, inputs: Mapping[str, Any]) -> NewRun:
        if not inputs and (known := _recall(self._runs, sent.text)):
            return known
        new = await asyncio.to_thread(self._build, sent, inputs)
        if not inputs and sent.lifecycle.name in SHIPPED:
            _remember(self._runs, sent.text, new)
        return new

    async def write_plan(self, sent: SentFlow, run_id: str) -> None:
        """Without these files, the run goes on as well."""
        if not sent.files:
            return
        try:
            await self._plans.ask((self.settings.directory / FOLDER / "runs" / run_id, sent.files))
        except OSError as error:
            log.warning("the plan of run %s cannot be written: %s", run_id, error)

    def _load(self, text: str, stored: Lifecycle | None) -> SentFlow:
        flow, lifecycle = load_with_lifecycle(f"{text}\n", tools=self.settings.all_tools, stored=stored)
        return SentFlow(text, flow, lifecycle, describe_files(flow) if _wants_plan(lifecycle) else {})

    def _build(self, sent: SentFlow, inputs: Mapping[str, Any]) -> NewRun:
        """A valid run: what is remembered need not be validated again."""
        settings = self.settings
        directory = str(settings.directory)
        new = build_run(sent.flow, inputs, directory=directory, tools=settings.all_tools, lifecycle=sent.lifecycle)
        validate(SubmitRun(new))
        return new


def _read_lifecycle(text: str) -> str:
    """The name of the lifecycle of a flow. What is no name is a finding of the flow."""
    document = read_document(f"{text}\n", TEXT)
    named = document.value.get("lifecycle", DEFAULT) if isinstance(document.value, dict) else DEFAULT
    return named if isinstance(named, str) else DEFAULT


def _wants_plan(lifecycle: Lifecycle) -> bool:
    """Files for each run would make every commit slower: to sync the database, the file system has to write them as well."""
    return any(WRITE_PLAN in move.effects for move in lifecycle.of_kind(Kind.RUN).transitions)


def _recall(known: dict[str, Value], text: str) -> Value | None:
    """What is asked for again stays: texts that come once do not push it out."""
    value = known.pop(text, None)
    if value is not None:
        known[text] = value
    return value


def _remember(known: dict[str, Value], text: str, value: Value) -> None:
    if len(text) > LONGEST_REMEMBERED:
        return
    while len(known) >= MOST_REMEMBERED:
        del known[next(iter(known))]
    known[text] = value


def _write_plans(plans: Sequence[Plan]) -> list[OSError | None]:
    errors: list[OSError | None] = []
    for folder, files in plans:
        try:
            write_files(files, folder)
        except OSError as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors
