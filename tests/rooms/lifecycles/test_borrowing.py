"""Every lifecycle has a machine for every kind of entity: its own, or that of the standard."""

from __future__ import annotations

import pytest

from pointsman import load_lifecycle, load_machine
from pointsman.kernel.machine import Kind
from pointsman.lifecycles import DEFAULT, SHIPPED

MACHINES = (
    ("supervised", "supervised.job", "standard.task", "supervised.worker", "standard.breaker"),
    ("pipeline", "pipeline.workstream", "pipeline.step", "standard.worker", "pipeline.breaker"),
    ("orchestrated", "orchestrated.workstream", "orchestrated.task", "orchestrated.worker", "standard.breaker"),
    ("approval", "approval.run", "approval.step", "standard.worker", "standard.breaker"),
    ("agent", "standard.run", "agent.task", "standard.worker", "standard.breaker"),
    ("standard", "standard.run", "standard.task", "standard.worker", "standard.breaker"),
)


@pytest.mark.parametrize(("name", "run", "task", "worker", "breaker"), MACHINES)
def test_a_lifecycle_borrows_what_it_does_not_declare(name: str, run: str, task: str, worker: str, breaker: str) -> None:
    lifecycle = load_lifecycle(name)
    assert lifecycle.of_kind(Kind.RUN).name == run
    assert lifecycle.of_kind(Kind.TASK).name == task
    assert lifecycle.of_kind(Kind.WORKER).name == worker
    assert lifecycle.of_kind(Kind.BREAKER).name == breaker


@pytest.mark.parametrize(("name", "run", "task", "worker", "breaker"), MACHINES)
def test_a_lifecycle_declares_only_machines_of_its_own(name: str, run: str, task: str, worker: str, breaker: str) -> None:
    own = {machine for machine in (run, task, worker, breaker) if machine.startswith(f"{name}.")}
    assert {machine.name for machine in load_lifecycle(name).machines} == own


def test_a_borrowed_machine_is_the_very_same() -> None:
    assert load_lifecycle("agent").of_kind(Kind.RUN) == load_machine("standard.run")


def test_the_breaker_of_document_001_is_the_standard_one() -> None:
    pipeline, standard = load_machine("pipeline.breaker"), load_machine("standard.breaker")
    assert pipeline.states == standard.states
    assert pipeline.transitions == standard.transitions


def test_six_lifecycles_are_shipped_and_the_union_is_the_default() -> None:
    assert sorted(SHIPPED) == sorted(name for name, *_ in MACHINES)
    assert DEFAULT == "standard"
