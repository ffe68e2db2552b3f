"""Histories written by hand: a clock that ticks with every call and return, and short ways to say who heard what.

db.submit("a")                      an operation that returns before the next one begins
with db.at_once(): …                operations that all begin before any of them returns
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.system.histories.record import Fate, Record

LEASE_SECONDS = 10.0


class StoreFixture:
    """One run of the standard lifecycle; its tasks are called by their names."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.now = 0.0
        self._together: float | None = None

    def tell(
        self, operation: str, heard: Any = None, /, *, fate: Fate = "answered", client: str = "ada", **arguments: Any
    ) -> None:
        """One operation; whoever heard the name of an exception was refused."""
        error = None
        if fate == "answered" and isinstance(heard, str):
            fate, heard, error = "refused", None, heard
        self.now += 0.001
        begun = self.now if self._together is None else self._together
        self.now += 0.001
        self.records.append(
            Record(
                client=client,
                operation=operation,
                arguments=arguments,
                invoked_at=begun,
                returned_at=None if fate == "unknown" else self.now,
                fate=fate,
                answer=heard,
                error=error,
            )
        )

    @contextmanager
    def at_once(self) -> Iterator[None]:
        self.now += 0.001
        self._together = self.now
        yield
        self._together = None

    def wait(self, seconds: float) -> None:
        self.now += seconds

    # what there is

    def submit(self, *names: str, **options: Any) -> None:
        new = {"name": "run", "lifecycle": "standard", "tasks": [{"name": name} | options for name in names]}
        self.tell("submit_run", {"id": "run", "state": "PENDING"}, run=new)

    def add(self, name: str, **options: Any) -> None:
        self.tell("add_tasks", [_row(name, "QUEUED", 0)], run_id="run", tasks=[{"name": name} | options])

    def register(self, *names: str) -> None:
        for name in names:
            self.tell("register_worker", {"id": name, "lease_seconds": LEASE_SECONDS}, name=name)

    # attempts

    def claim(self, worker: str, task: str, epoch: int, **more: Any) -> None:
        self.tell("claim_tasks", [_claim(task, epoch, **more)], client=worker, worker_id=worker)

    def beat(self, worker: str, task: str, epoch: int, *, lost: bool = False) -> None:
        answer = {"lost": [[task, epoch]] if lost else [], "cancelled": [], "unknown": []}
        self.tell("heartbeat", answer, client=worker, worker_id=worker, attempts=[[task, epoch]])

    def complete(self, task: str, epoch: int, answer: Any = "SUCCEEDED", **more: Any) -> None:
        self._report("complete_task", task, epoch, answer, **more)

    def fail(self, task: str, epoch: int, answer: Any = "FAILED", **more: Any) -> None:
        self._report("fail_task", task, epoch, answer, error="no", **more)

    def _report(self, operation: str, task: str, epoch: int, answer: Any, **more: Any) -> None:
        self.tell(operation, _answer(task, answer, epoch), task_id=task, epoch=epoch, **more)

    # people

    def signal(self, task: str, signal: str, heard: Any, /, *, epoch: int = 0, **more: Any) -> None:
        self.tell("signal_task", _answer(task, heard, epoch), task_id=task, signal=signal, **more)

    def look_at_run(self, state: str) -> None:
        self.tell("get_run", {"id": "run", "state": state}, run_id="run")

    def look_at_tasks(self, **states: str) -> None:
        """Each in the state that its name is given with."""
        self.tell("list_tasks", [_row(task, state, 1) for task, state in states.items()], run_id="run")

    def look(self, task: str, state: str, epoch: int, **more: Any) -> None:
        self.tell("get_task", _row(task, state, epoch) | more, task_id=task)


def _answer(task: str, answer: Any, epoch: int) -> Any:
    """A state is answered with a task in that state; anything else is left as it is."""
    return _row(task, answer, epoch) if isinstance(answer, str) and answer.isupper() else answer


def _row(task: str, state: str, epoch: int) -> dict[str, Any]:
    return {
        "id": task,
        "run_id": "run",
        "name": task,
        "state": state,
        "outcome": None,
        "epoch": epoch,
        "current_attempt": epoch if state in ("RUNNING", "VALIDATING") else None,
        "worker_id": "bob" if state in ("RUNNING", "VALIDATING") else None,
        "retry_count": 0,
    }


def _claim(task: str, epoch: int, **more: Any) -> dict[str, Any]:
    return {"task_id": task, "epoch": epoch, "run_id": "run", "name": task, "tool": None, "answer": None} | more
