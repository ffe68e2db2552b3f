"""Whatever is asked wrongly is refused by name, with the place and what to do; nothing of it is kept, and work goes on.

All cases of a database share one engine, whose clock stands still; each looks at the rows of the database before and after.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise, product
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.databases import DATABASES, postgres_database, sqlite_url
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, register, state_of, submit
from tests.rows import each_row
from tests.system.faults.prompt import Prompt, prompt

from pointsman.engine import submit as submissions
from pointsman.engine.checks import MAX_TEXT_BYTES as MAX_PAYLOAD_BYTES
from pointsman.engine.engine import Engine
from pointsman.engine.filters import RunFilter
from pointsman.engine.operation import validate
from pointsman.engine.operations.attempts import AttemptReport
from pointsman.engine.operations.runs import SubmitRun
from pointsman.engine.policy import Backoff
from pointsman.engine.submit import MAX_TASKS, NewRun, NewTask
from pointsman.errors import (
    EngineClosed,
    LeaseLost,
    LifecycleError,
    NotFound,
    PointsmanError,
    RequestError,
    RequestInvalid,
    TransitionRefused,
    UnknownName,
)
from pointsman.kernel.machine import Kind
from pointsman.store.rows import Run, Task, Worker

Answer = TypeVar("Answer")

NUL = "a\0b"
HALF = "a\ud800b"
HUGE = "x" * 10_000_000
PATIENCE_SECONDS = 15
TABLES = (
    "tenant", "machine", "run", "lane", "task", "dependency", "attempt", "worker", "breaker", "timer", "transition", "notice",
    "idempotency_key",
)  # fmt: skip
ADVICE = re.compile(
    r"[Mm]ust be|[Mm]ust have|are allowed|go no deeper|Names are unique|may say|Did you mean|Known:|Remove|Repair|Give|Use"
    r"|Split|Keep|Say|Name it|Flatten|Pass|Check|Declare|Submit|neither|Replace|Write|announced|Store"
)


@dataclass
class Desk:
    """An engine in a thread of its own that requests are sent to, and work that has been begun."""

    database: str
    folders: pytest.TempPathFactory
    somebody: Prompt = field(init=False)
    engine: Engine = field(init=False)
    run: Run = field(init=False)
    worker: Worker = field(init=False)
    running: Task = field(init=False)
    """Held by `worker`, as attempt 1."""
    waiting: Task = field(init=False)
    """Nobody has claimed it."""
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _closing: asyncio.Event = field(init=False)
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Desk:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def ask(self, question: Callable[[Desk], Awaitable[Answer]]) -> Answer:
        async def put() -> Answer:
            return await question(self)

        return asyncio.run_coroutine_threadsafe(put(), self._loop).result(PATIENCE_SECONDS)

    def read_traces(self) -> list[list[tuple[Any, ...]]]:
        """How many rows there are of everything, and what stands in those that a bad request could be about."""
        counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)
        moves = ", ".join(f"(SELECT sum(revision) FROM {table})" for table in ("run", "task", "worker", "breaker"))
        return [
            self.somebody.ask(f"SELECT {counts}, {moves}"),
            self.somebody.ask("SELECT * FROM run WHERE id = :id", id=self.run.id),
            self.somebody.ask("SELECT * FROM task WHERE run_id = :id ORDER BY id", id=self.run.id),
            self.somebody.ask("SELECT * FROM attempt WHERE task_id = :id ORDER BY epoch", id=self.running.id),
            self.somebody.ask("SELECT * FROM worker WHERE id = :id", id=self.worker.id),
            self.somebody.ask("SELECT * FROM breaker ORDER BY id"),
        ]

    @contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """Whatever happens inside leaves the database as it was, and a good request is served afterwards."""
        before = self.read_traces()
        try:
            yield
            assert self.read_traces() == before
            run = self.ask(lambda desk: submit(desk.engine, NewTask(name="good")))
            assert run.state == "PENDING"
        except BaseException:
            self._open()  # so that the next request is not blamed for this one
            raise

    def refuses(
        self, question: Callable[[Desk], Awaitable[object]], *kinds: type[PointsmanError], path: str | None = None
    ) -> PointsmanError:
        """Asking so gives an error of one of these kinds that says where the problem is and what to do."""
        with self.nothing_changes(), pytest.raises(PointsmanError) as caught:
            self.ask(question)
        error = caught.value
        assert isinstance(error, kinds or (RequestError, LifecycleError)), repr(error)[:300]
        assert len(str(error)) < 5_000, "a message that repeats ten megabytes helps nobody"
        if isinstance(error, RequestInvalid):
            assert path is None or path in [problem.path for problem in error.problems], error.problems
            for problem in error.problems:
                assert problem.path
                assert ADVICE.search(problem.message), f"it does not say what to do: {problem.message}"
        return error

    def _open(self) -> None:
        self._opened.close()
        if self.database == "sqlite":
            url = sqlite_url(self.folders.mktemp("desk"))
        else:
            url = self._opened.enter_context(postgres_database())
        self.somebody = self._opened.enter_context(prompt(url))
        self._opened.enter_context(self._serve(url))

    @contextmanager
    def _serve(self, url: str) -> Iterator[None]:
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._live(url, ready)))
        thread.start()
        try:
            assert ready.wait(PATIENCE_SECONDS)
            yield
        finally:
            self._loop.call_soon_threadsafe(self._closing.set)
            thread.join()

    async def _live(self, url: str, ready: threading.Event) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        async with open_engine(url, ManualClock()) as engine:
            self.engine = engine
            await engine.declare_tool("compiler")
            self.run = await submit(engine, NewTask(name="running", tool="compiler"), NewTask(name="waiting", priority=-1))
            self.worker = await register(engine)
            claim = await claim_one(engine, self.worker)
            self.running, self.waiting = await engine.list_tasks(self.run.id)
            assert claim.task_id == self.running.id
            ready.set()
            await self._closing.wait()


@pytest.fixture(scope="module", params=DATABASES)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Desk(request.param, tmp_path_factory) as opened:
        yield opened


# ids

Asked = Callable[[Desk, Any], Awaitable[object]]

BY_ID: dict[str, tuple[str, Asked]] = {
    "get_run": ("run", lambda desk, name: desk.engine.get_run(name)),
    "list_tasks": ("run", lambda desk, name: desk.engine.list_tasks(name)),
    "list_dependencies": ("run", lambda desk, name: desk.engine.list_dependencies(name)),
    "add_tasks": ("run", lambda desk, name: desk.engine.add_tasks(name, [NewTask(name="more")])),
    "signal_run": ("run", lambda desk, name: desk.engine.signal_run(name, "cancel")),
    "approve_run": ("run", lambda desk, name: desk.engine.approve_run(name)),
    "set_budget": ("run", lambda desk, name: desk.engine.set_budget(name, Decimal(1))),
    "parent_run_id": ("run", lambda desk, name: submit(desk.engine, NewTask(name="a"), parent_run_id=name)),
    "transition a run": ("run", lambda desk, name: desk.engine.request_transition(Kind.RUN, name, trigger="cancel")),
    "get_task": ("task", lambda desk, name: desk.engine.get_task(name)),
    "list_attempts": ("task", lambda desk, name: desk.engine.list_attempts(name)),
    "signal_task": ("task", lambda desk, name: desk.engine.signal_task(name, "cancel")),
    "complete_task": ("task", lambda desk, name: desk.engine.complete_task(name, 1)),
    "fail_task": ("task", lambda desk, name: desk.engine.fail_task(name, 1, AttemptReport(error="no"))),
    "ask": ("task", lambda desk, name: desk.engine.report_attempt(name, 1, "ask", AttemptReport(question="why?"))),
    "signal_attempt": ("task", lambda desk, name: desk.engine.report_attempt(name, 1, "expire")),
    "note_attempt": ("task", lambda desk, name: desk.engine.report_attempt(name, 1)),
    "transition a task": ("task", lambda desk, name: desk.engine.request_transition(Kind.TASK, name, to_state="CANCELED")),
    "get_worker": ("worker", lambda desk, name: desk.engine.get_worker(name)),
    "claim_tasks": ("worker", lambda desk, name: desk.engine.claim_tasks(name)),
    "heartbeat": ("worker", lambda desk, name: desk.engine.send_heartbeat(name)),
    "signal_worker": ("worker", lambda desk, name: desk.engine.signal_worker(name, "pause")),
    "transition a worker": ("worker", lambda desk, name: desk.engine.request_transition(Kind.WORKER, name, trigger="pause")),
    "get_breaker": ("tool", lambda desk, name: desk.engine.get_breaker(name)),
    "reset_breaker": ("tool", lambda desk, name: desk.engine.reset_breaker(name)),
    "trip_breaker": ("tool", lambda desk, name: desk.engine.trip_breaker(name)),
}
BAD_IDS = {
    "unknown": "run_0190000000007000800000000000ffff",
    "empty": "",
    "nul": NUL,
    "half a surrogate": HALF,
    "10 kB": "x" * 10_000,
    "10 MB": HUGE,
    "traversal": "../../../etc/passwd",
    "sql": "' OR 1=1; DROP TABLE run; --",
    "percent": "%s %(id)s {} :id",
}


@each_row("bad", BAD_IDS)
@each_row("method", BY_ID)
def test_nothing_is_found_under_a_name_that_nobody_has(desk: Desk, method: str, bad: str) -> None:
    kind, ask = BY_ID[method]
    error = desk.refuses(lambda desk: ask(desk, BAD_IDS[bad]), NotFound)
    assert isinstance(error, NotFound)
    assert error.kind == kind
    assert "Check the id" in str(error)


def test_what_never_was_has_no_history(desk: Desk) -> None:
    desk.refuses(lambda desk: desk.engine.list_history(BAD_IDS["unknown"]), NotFound)


@each_row("bad", ["nul", "half a surrogate"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda desk, name: desk.engine.add_tasks(name, [NewTask(name="more")], request_id="key"),
        lambda desk, name: desk.engine.signal_run(name, "cancel", request_id="key"),
        lambda desk, name: desk.engine.signal_task(name, "cancel", request_id="key"),
        lambda desk, name: desk.engine.complete_task(name, 1, request_id="key"),
        lambda desk, name: desk.engine.signal_worker(name, "pause", request_id="key"),
        lambda desk, name: desk.engine.reset_breaker(name, request_id="key"),
        lambda desk, name: desk.engine.trip_breaker(name, request_id="key"),
        lambda desk, name: desk.engine.set_budget(name, None, request_id="key"),
        lambda desk, name: desk.engine.request_transition(Kind.RUN, name, trigger="cancel", request_id="key"),
    ],
    ids=[
        "add_tasks",
        "signal_run",
        "signal_task",
        "complete_task",
        "signal_worker",
        "reset_breaker",
        "trip_breaker",
        "set_budget",
        "transition",
    ],
)
def test_nor_with_an_idempotency_key(desk: Desk, ask: Asked, bad: str) -> None:
    desk.refuses(lambda desk: ask(desk, BAD_IDS[bad]), NotFound)


def test_a_worker_is_told_which_of_its_attempts_nobody_knows(desk: Desk) -> None:
    attempts = [("task_of_nobody", 1), (desk.running.id, 7), (desk.waiting.id, 1), (desk.running.id, 1)]
    beat = desk.ask(lambda desk: desk.engine.send_heartbeat(desk.worker.id, attempts))
    assert beat.lost == tuple(attempts[:3])
    desk.refuses(lambda desk: desk.engine.send_heartbeat(desk.worker.id, [(HALF, 1)]), NotFound)


@settings(max_examples=60)
@given(name=st.text(st.characters(exclude_categories=()), max_size=40))
def test_no_name_does_harm(desk: Desk, name: str) -> None:
    """Names of all characters that there are, halves of surrogates too."""
    for ask in (
        lambda desk: desk.engine.get_run(name),
        lambda desk: desk.engine.signal_task(name, "cancel"),
        lambda desk: desk.engine.claim_tasks(name),
        lambda desk: desk.engine.get_breaker(name),
        lambda desk: submit(desk.engine, NewTask(name="a", tool=f"tool {name}")),
    ):
        with pytest.raises(RequestError):
            desk.ask(ask)


# names of lifecycles and tools


def test_an_unknown_lifecycle_suggests_the_nearest(desk: Desk) -> None:
    for ask in (
        lambda desk: submit(desk.engine, NewTask(name="a"), lifecycle="standrad"),
        lambda desk: desk.engine.register_worker("bob", lifecycle="standrad"),
    ):
        error = desk.refuses(ask, UnknownName)
        assert "Did you mean standard?" in str(error)


@each_row("name", ["", NUL, HALF, "x" * 10_000, "../standard", "standard.run"])
def test_a_lifecycle_that_cannot_be_is_unknown(desk: Desk, name: str) -> None:
    desk.refuses(lambda desk: submit(desk.engine, NewTask(name="a"), lifecycle=name), UnknownName, RequestInvalid)


def test_an_unknown_tool_suggests_the_nearest_and_says_to_declare_it(desk: Desk) -> None:
    error = desk.refuses(
        lambda desk: submit(desk.engine, NewTask(name="a"), NewTask(name="b", tool="complier")),
        RequestInvalid,
        path="tasks[1].tool",
    )
    assert "Did you mean compiler?" in str(error)
    assert "Declare it first" in str(error)
    desk.refuses(
        lambda desk: desk.engine.add_tasks(desk.run.id, [NewTask(name="more", tool="complier")]),
        RequestInvalid,
        path="tasks[0].tool",
    )


# the shape of a run


def chain(*names: str) -> tuple[NewTask, ...]:
    """Each depends on the next, and the last on the first."""
    return tuple(NewTask(name=name, depends_on=(names[(index + 1) % len(names)],)) for index, name in enumerate(names))


def subtasks(depth: int) -> tuple[NewTask, ...]:
    return tuple(NewTask(name=f"t{level}", parent=f"t{level - 1}" if level else None) for level in range(depth + 1))


SHAPES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no task": ({"tasks": ()}, "tasks", "at least one task"),
    "too many tasks": ({"tasks": (NewTask(name="a"),) * (MAX_TASKS + 1)}, "tasks", "Split it up"),
    "a task that depends on itself": ({"tasks": chain("a")}, "tasks", "a -> a"),
    "a circle of two": ({"tasks": chain("a", "b")}, "tasks", "circle"),
    "a circle of five": ({"tasks": (*chain("a", "b", "c", "d", "e"), NewTask(name="f"))}, "tasks", "circle"),
    "its own parent": ({"tasks": (NewTask(name="a", parent="a"),)}, "tasks", "a -> a"),
    "parents in a circle": ({"tasks": (NewTask(name="a", parent="b"), NewTask(name="b", parent="a"))}, "tasks", "circle"),
    "a part that waits for its whole": (
        {"tasks": (NewTask(name="whole"), NewTask(name="part", parent="whole", depends_on=("whole",)))},
        "tasks",
        "circle",
    ),
    "an order against the dependencies": (
        {"ordered": True, "tasks": (NewTask(name="a", depends_on=("b",)), NewTask(name="b"))},
        "tasks",
        "circle",
    ),
    "an order in which a part follows its whole": (
        {"ordered": True, "tasks": (NewTask(name="whole"), NewTask(name="part", parent="whole"))},
        "tasks",
        "circle",
    ),
    "an unknown dependency": (
        {"tasks": (NewTask(name="build"), NewTask(name="test", depends_on=("biuld",)))},
        "tasks[1]",
        "Did you mean build?",
    ),
    "an unknown parent": ({"tasks": (NewTask(name="a", parent="nobody"),)}, "tasks[0]", "no task 'nobody'"),
    "a dependency named twice": (
        {"tasks": (NewTask(name="a"), NewTask(name="b", depends_on=("a", "a")))},
        "tasks[1].depends_on",
        "named twice",
    ),
    "two tasks of a name": ({"tasks": (NewTask(name="a"), NewTask(name="a"))}, "tasks[1].name", "another task called 'a'"),
    "an empty name": ({"tasks": (NewTask(name=""),)}, "tasks[0].name", "empty"),
    "a blank name": ({"tasks": (NewTask(name=" \t\n"),)}, "tasks[0].name", "empty"),
    "a name that is no text": ({"tasks": (NewTask(name=7),)}, "tasks[0].name", "name"),  # type: ignore[arg-type]
    "a long name": ({"tasks": (NewTask(name="n" * 201),)}, "tasks[0].name", "200 are allowed"),
    "a run without a name": ({"name": "", "tasks": (NewTask(name="a"),)}, "name", "empty"),
    "subtasks six deep": ({"tasks": subtasks(6)}, "tasks[6].parent", "no deeper than 5"),
    "more tasks than announced": ({"tasks": (NewTask(name="a"), NewTask(name="b")), "task_count": 1}, "task_count", "only 1"),
    "no worker": ({"tasks": (NewTask(name="a"),), "worker_count": 0}, "worker_count", "from 1 to 10"),
    "eleven workers": ({"tasks": (NewTask(name="a"),), "worker_count": 11}, "worker_count", "from 1 to 10"),
    "another answer to an open circuit": (
        {"tasks": (NewTask(name="a", on_open_circuit="panic"),)},  # type: ignore[arg-type]
        "tasks[0].on_open_circuit",
        "Must be one of wait, fail",
    ),
    "dependencies that are one word": (
        {"tasks": (NewTask(name="build"), NewTask(name="test", depends_on="build"))},
        "tasks[1].depends_on",
        "Must be a list of words",
    ),
}


@each_row("shape", SHAPES)
def test_a_run_that_could_never_end_or_makes_no_sense_is_refused(desk: Desk, shape: str) -> None:
    options, path, words = SHAPES[shape]
    error = desk.refuses(lambda desk: desk.engine.submit_run(NewRun(**{"name": "bad", **options})), RequestInvalid, path=path)
    assert words in str(error)


def test_a_circle_is_shown_in_the_order_in_which_it_is_walked(desk: Desk) -> None:
    tasks = chain("build", "test", "deploy")
    error = desk.refuses(lambda desk: desk.engine.submit_run(NewRun(name="bad", tasks=tasks)), RequestInvalid)
    circle = re.search(r"circle: (.*?)\. ", str(error))
    assert circle
    names = circle[1].split(" -> ")
    assert names[0] == names[-1]
    follows = {task.name: next(iter(task.depends_on)) for task in tasks}
    assert all(follows[name] == after for name, after in pairwise(names))


def test_a_thousand_misspelt_names_do_not_keep_everybody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for the nearest of a thousand names takes a while, and the event loop stands still: a few times are enough."""
    looked: list[str] = []

    def look(word: str, *_: object, **__: object) -> list[str]:
        looked.append(word)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", look)
    tasks = tuple(NewTask(name=f"task number {number}", depends_on=(f"tusk nomber {number}",)) for number in range(1000))
    with pytest.raises(RequestInvalid):
        validate(SubmitRun(NewRun(name="misspelt", tasks=tasks)))
    assert len(looked) <= 100


def test_every_problem_is_told_at_once(desk: Desk) -> None:
    new = NewRun(name="", worker_count=99, tasks=(NewTask(name="a", max_retries=-1, timeout_seconds=0), NewTask(name="a")))
    error = desk.refuses(lambda desk: desk.engine.submit_run(new), RequestInvalid)
    assert isinstance(error, RequestInvalid)
    paths = {problem.path for problem in error.problems}
    assert paths == {"name", "worker_count", "tasks[0].max_retries", "tasks[0].timeout_seconds", "tasks[1].name"}


@each_row(
    ("tasks", "path"),
    [
        ([NewTask(name="running")], "tasks[0].name"),
        ([NewTask(name="a", depends_on=("nobody",))], "tasks[0]"),
        ([NewTask(name="a", depends_on=("b",)), NewTask(name="b", depends_on=("a",))], "tasks"),
        ([NewTask(name="a", parent="running", depends_on=("running",))], "tasks"),
        ([NewTask(name="a", max_retries=-1)], "tasks[0].max_retries"),
        ([NewTask(name="a", payload=object())], "tasks[0].payload"),
        ([], "tasks"),
    ],
)
@each_row("key", [None, "a key"])
def test_what_is_added_to_a_run_is_looked_at_too(desk: Desk, tasks: list[NewTask], path: str, key: str | None) -> None:
    desk.refuses(lambda desk: desk.engine.add_tasks(desk.run.id, tasks, request_id=key), RequestInvalid, path=path)


def test_runs_go_no_deeper_than_five(desk: Desk) -> None:
    async def dig(desk: Desk) -> str:
        deepest = desk.run.id
        for _ in range(5):
            deepest = (await submit(desk.engine, NewTask(name="a"), parent_run_id=deepest)).id
        return deepest

    deepest = desk.ask(dig)
    error = desk.refuses(
        lambda desk: submit(desk.engine, NewTask(name="a"), parent_run_id=deepest), RequestInvalid, path="parent_run_id"
    )
    assert "no deeper than 5" in str(error)


def test_subtasks_that_are_added_later_go_no_deeper_either(desk: Desk) -> None:
    run = desk.ask(lambda desk: submit(desk.engine, *subtasks(5)))
    desk.refuses(
        lambda desk: desk.engine.add_tasks(run.id, [NewTask(name="t6", parent="t5")]), RequestInvalid, path="tasks[0].parent"
    )


def test_a_run_that_has_ended_gets_no_more_tasks(desk: Desk) -> None:
    run = desk.ask(lambda desk: submit(desk.engine, NewTask(name="a")))
    desk.ask(lambda desk: desk.engine.signal_run(run.id, "cancel"))
    error = desk.refuses(lambda desk: desk.engine.add_tasks(run.id, [NewTask(name="b")]), RequestInvalid, path="run_id")
    assert "Submit a new run" in str(error)


def test_capabilities_that_no_database_could_index_are_refused(desk: Desk) -> None:
    """An index holds a few kilobytes: what goes into one must be bounded before it gets there."""
    words = tuple(f"{number:x}".join(f"{number * 7919 + salt:x}" for salt in range(25)) for number in range(1, 60))
    with desk.nothing_changes(), pytest.raises(RequestInvalid):
        desk.ask(lambda desk: submit(desk.engine, NewTask(name="a", capabilities=words)))


# numbers

BAD_NUMBERS = {
    "negative": -(10**7),
    "nan": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "bool": True,
    "text": "3",
    "huge": 10**30,
    "list": [1],
}
BAD_AMOUNTS = {
    "negative": Decimal(-1),
    "nan": Decimal("nan"),
    "signalling nan": Decimal("snan"),
    "infinite": Decimal("inf"),
    "float": 1.5,
    "bool": True,
    "text": "3",
    "huge": Decimal(10) ** 30,
}
RUN_NUMBERS = ("worker_count", "max_retries", "task_count", "timeout_seconds")
TASK_NUMBERS = (
    "priority", "max_retries", "max_attempts", "max_reclaims", "timeout_seconds", "reclaim_after_seconds", "approval_seconds",
)  # fmt: skip
BACKOFF_NUMBERS = ("base_seconds", "factor", "max_seconds", "jitter")
CALL_NUMBERS: dict[str, Asked] = {
    "max_concurrent_tasks": lambda desk, number: desk.engine.register_worker("bob", max_concurrent_tasks=number),
    "lease_seconds": lambda desk, number: desk.engine.register_worker("bob", lease_seconds=number),
    "failure_threshold": lambda desk, number: desk.engine.declare_tool("linker", failure_threshold=number),
    "max_concurrent": lambda desk, number: desk.engine.declare_tool("linker", max_concurrent=number),
    "rate_count": lambda desk, number: desk.engine.declare_tool("linker", rate_count=number, rate_seconds=1.0),
    "success_threshold": lambda desk, number: desk.engine.declare_tool("linker", success_threshold=number),
    "cooldown_seconds": lambda desk, number: desk.engine.declare_tool("linker", cooldown_seconds=number),
    "seconds": lambda desk, number: desk.engine.trip_breaker("compiler", number),
    "limit": lambda desk, number: desk.engine.claim_tasks(desk.worker.id, number),
    "wait_seconds": lambda desk, number: desk.engine.claim_tasks(desk.worker.id, wait_seconds=number),
    "exit_code": lambda desk, number: desk.engine.complete_task(desk.running.id, 1, AttemptReport(exit_code=number)),
}
CALL_AMOUNTS: dict[str, tuple[str, Asked]] = {
    "set_budget": ("budget_usd", lambda desk, amount: desk.engine.set_budget(desk.run.id, amount)),
    "complete_task": (
        "cost_usd",
        lambda desk, cost: desk.engine.complete_task(desk.running.id, 1, AttemptReport(cost_usd=cost)),
    ),
    "fail_task": (
        "cost_usd",
        lambda desk, cost: desk.engine.fail_task(desk.running.id, 1, AttemptReport(error="no", cost_usd=cost)),
    ),
    "ask": (
        "cost_usd",
        lambda desk, cost: desk.engine.report_attempt(desk.running.id, 1, "ask", AttemptReport(question="why?", cost_usd=cost)),
    ),
    "note_attempt": (
        "cost_usd",
        lambda desk, cost: desk.engine.report_attempt(desk.running.id, 1, report=AttemptReport(cost_usd=cost)),
    ),
    "a run": ("budget_usd", lambda desk, amount: submit(desk.engine, NewTask(name="a"), budget_usd=amount)),
    "a task": ("tasks[0].budget_usd", lambda desk, amount: submit(desk.engine, NewTask(name="a", budget_usd=amount))),
}
LIST_LIMITS: dict[str, Asked] = {
    "list_runs": lambda desk, limit: desk.engine.list_runs(limit=limit),
    "list_notices": lambda desk, limit: desk.engine.list_notices(limit=limit),
    "list_transitions": lambda desk, limit: desk.engine.list_transitions(limit=limit),
}


@each_row("bad", BAD_NUMBERS)
@each_row("name", RUN_NUMBERS)
def test_a_number_of_a_run_is_checked(desk: Desk, name: str, bad: str) -> None:
    options: dict[str, Any] = {name: BAD_NUMBERS[bad]}
    desk.refuses(lambda desk: submit(desk.engine, NewTask(name="a"), NewTask(name="b"), **options), RequestInvalid, path=name)


@each_row("bad", BAD_NUMBERS)
@each_row("name", TASK_NUMBERS)
def test_a_number_of_a_task_is_checked(desk: Desk, name: str, bad: str) -> None:
    options: dict[str, Any] = {name: BAD_NUMBERS[bad]}
    desk.refuses(lambda desk: submit(desk.engine, NewTask(name="a", **options)), RequestInvalid, path=f"tasks[0].{name}")


@each_row("bad", BAD_NUMBERS)
@each_row("name", BACKOFF_NUMBERS)
def test_a_number_of_a_backoff_is_checked(desk: Desk, name: str, bad: str) -> None:
    options: dict[str, Any] = {name: BAD_NUMBERS[bad]}
    backoff = Backoff(**options)
    desk.refuses(
        lambda desk: submit(desk.engine, NewTask(name="a", backoff=backoff)), RequestInvalid, path=f"tasks[0].backoff.{name}"
    )
    desk.refuses(lambda desk: submit(desk.engine, NewTask(name="a"), backoff=backoff), RequestInvalid, path=f"backoff.{name}")


KILLED = ("exit_code", "negative")
"""The one that is good: a process that was killed has a negative exit code."""


@each_row(("name", "bad"), [row for row in product(CALL_NUMBERS, BAD_NUMBERS) if row != KILLED])
def test_a_number_of_a_request_is_checked(desk: Desk, name: str, bad: str) -> None:
    desk.refuses(lambda desk: CALL_NUMBERS[name](desk, BAD_NUMBERS[bad]), RequestInvalid, path=name)


@each_row("name", ["max_concurrent_tasks", "failure_threshold", "limit", "lease_seconds", "cooldown_seconds"])
def test_nothing_is_done_no_times(desk: Desk, name: str) -> None:
    desk.refuses(lambda desk: CALL_NUMBERS[name](desk, 0), RequestInvalid, path=name)


@each_row("bad", BAD_AMOUNTS)
@each_row("method", CALL_AMOUNTS)
def test_an_amount_of_money_is_checked(desk: Desk, method: str, bad: str) -> None:
    path, ask = CALL_AMOUNTS[method]
    desk.refuses(lambda desk: ask(desk, BAD_AMOUNTS[bad]), RequestInvalid, path=path)


@each_row("amount", ["0.0000019", "1.99999999999", "99999999.9999999"])
def test_an_amount_that_cannot_be_kept_exactly_is_refused(desk: Desk, amount: str) -> None:
    desk.refuses(
        lambda desk: submit(desk.engine, NewTask(name="a"), budget_usd=Decimal(amount)), RequestInvalid, path="budget_usd"
    )


@each_row("bad", BAD_NUMBERS)
@each_row("method", LIST_LIMITS)
def test_the_size_of_a_page_is_checked(desk: Desk, method: str, bad: str) -> None:
    desk.refuses(lambda desk: LIST_LIMITS[method](desk, BAD_NUMBERS[bad]), RequestInvalid, path="limit")


# texts

BAD_TEXTS = {"nul": NUL, "half a surrogate": HALF, "huge": HUGE}
TEXTS: dict[str, tuple[str, Asked]] = {
    "name of a run": ("name", lambda desk, text: desk.engine.submit_run(NewRun(name=text, tasks=(NewTask(name="a"),)))),
    "name of a task": ("tasks[0].name", lambda desk, text: submit(desk.engine, NewTask(name=text))),
    "tool of a task": ("tasks[0].tool", lambda desk, text: submit(desk.engine, NewTask(name="a", tool=text))),
    "capability of a task": (
        "tasks[0].capabilities[1]",
        lambda desk, text: submit(desk.engine, NewTask(name="a", capabilities=("gpu", text))),
    ),
    "name of a worker": ("name", lambda desk, text: desk.engine.register_worker(text)),
    "capability of a worker": (
        "capabilities[1]",
        lambda desk, text: desk.engine.register_worker("bob", capabilities=["gpu", text]),
    ),
    "name of a tool": ("tool", lambda desk, text: desk.engine.declare_tool(text)),
    "comment": ("comment", lambda desk, text: desk.engine.signal_task(desk.waiting.id, "cancel", comment=text)),
    "answer": ("answer", lambda desk, text: desk.engine.signal_task(desk.waiting.id, "cancel", answer=text)),
    "question": (
        "question",
        lambda desk, text: desk.engine.report_attempt(desk.running.id, 1, "ask", AttemptReport(question=text)),
    ),
    "error": ("error", lambda desk, text: desk.engine.fail_task(desk.running.id, 1, AttemptReport(error=text))),
    "error of a signal": (
        "error",
        lambda desk, text: desk.engine.report_attempt(desk.running.id, 1, "expire", AttemptReport(error=text)),
    ),
    "session of a completion": (
        "session_id",
        lambda desk, text: desk.engine.complete_task(desk.running.id, 1, AttemptReport(session_id=text)),
    ),
    "session of a question": (
        "session_id",
        lambda desk, text: desk.engine.report_attempt(
            desk.running.id, 1, "ask", AttemptReport(question="why?", session_id=text)
        ),
    ),
    "session of a note": (
        "session_id",
        lambda desk, text: desk.engine.report_attempt(desk.running.id, 1, report=AttemptReport(session_id=text)),
    ),
    "log path": (
        "log_path",
        lambda desk, text: desk.engine.report_attempt(desk.running.id, 1, report=AttemptReport(log_path=text)),
    ),
    "signal of a task": ("signal", lambda desk, text: desk.engine.signal_task(desk.running.id, text)),
    "signal of a run": ("signal", lambda desk, text: desk.engine.signal_run(desk.run.id, text)),
    "signal of a worker": ("signal", lambda desk, text: desk.engine.signal_worker(desk.worker.id, text)),
    "signal of an attempt": ("signal", lambda desk, text: desk.engine.report_attempt(desk.running.id, 1, text)),
    "state": ("to_state", lambda desk, text: desk.engine.request_transition(Kind.RUN, desk.run.id, to_state=text)),
    "trigger": ("trigger", lambda desk, text: desk.engine.request_transition(Kind.RUN, desk.run.id, trigger=text)),
    "key of a submission": ("request_id", lambda desk, text: submit_with(desk, request_id=text)),
    "key of a completion": (
        "request_id",
        lambda desk, text: desk.engine.complete_task(desk.running.id, 1, request_id=text),
    ),
    "tenant of a submission": ("tenant", lambda desk, text: submit_with(desk, tenant=text)),
    "actor of a submission": ("actor", lambda desk, text: submit_with(desk, actor=text)),
    "tenant of a claim": ("tenant", lambda desk, text: desk.engine.for_tenant(text).claim_tasks(desk.worker.id)),
}


def say(who: str) -> dict[str, tuple[str, Asked]]:
    """Everywhere that people are asked why."""
    return {
        f"{who} of a submission": (who, lambda desk, text: submit_with(desk, **{who: text})),
        f"{who} of more tasks": (
            who,
            lambda desk, text: desk.engine.add_tasks(desk.run.id, [NewTask(name="more")], **{who: text}),
        ),
        f"{who} of a signal to a task": (
            who,
            lambda desk, text: desk.engine.signal_task(desk.waiting.id, "cancel", **{who: text}),
        ),
        f"{who} of a signal to a run": (
            who,
            lambda desk, text: desk.engine.signal_run(desk.run.id, "cancel", **{who: text}),
        ),
        f"{who} of an approval": (who, lambda desk, text: desk.engine.approve_run(desk.run.id, **{who: text})),
        f"{who} of a transition": (
            who,
            lambda desk, text: desk.engine.request_transition(Kind.RUN, desk.run.id, trigger="pause", **{who: text}),
        ),
        f"{who} of a signal to a worker": (
            who,
            lambda desk, text: desk.engine.signal_worker(desk.worker.id, "pause", **{who: text}),
        ),
        f"{who} of a reset": (who, lambda desk, text: desk.engine.reset_breaker("compiler", **{who: text})),
        f"{who} of a trip": (who, lambda desk, text: desk.engine.trip_breaker("compiler", **{who: text})),
        f"{who} of a budget": (who, lambda desk, text: desk.engine.set_budget(desk.run.id, None, **{who: text})),
        f"{who} of a repair": (who, lambda desk, text: desk.engine.repair(**{who: text})),
    }


TEXTS |= say("reason")


def submit_new(desk: Desk, *, new: NewRun, key: str | None) -> Awaitable[Run]:
    return desk.engine.submit_run(new, request_id=key)


def submit_with(desk: Desk, *, tenant: str = "default", actor: str = "user", **options: Any) -> Awaitable[Run]:
    engine = desk.engine.for_tenant(tenant, actor=actor)
    return engine.submit_run(NewRun(name="a", tasks=(NewTask(name="a"),)), **options)


@each_row("bad", BAD_TEXTS)
@each_row("place", TEXTS)
def test_text_that_no_database_could_keep_is_refused(desk: Desk, place: str, bad: str) -> None:
    path, ask = TEXTS[place]
    desk.refuses(lambda desk: ask(desk, BAD_TEXTS[bad]), RequestInvalid, path=path)


@each_row("place", ["key of a submission", "tenant of a submission", "name of a tool", "name of a worker"])
def test_a_key_is_no_longer_than_an_index_can_hold(desk: Desk, place: str) -> None:
    """A few kilobytes that cannot be compressed are too much for an index of PostgreSQL."""
    path, ask = TEXTS[place]
    text = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(1250))
    desk.refuses(lambda desk: ask(desk, text), RequestInvalid, path=path)


@each_row("place", ["tenant of a submission", "name of a tool", "name of a worker", "capability of a worker"])
def test_a_name_is_not_empty(desk: Desk, place: str) -> None:
    path, ask = TEXTS[place]
    desk.refuses(lambda desk: ask(desk, ""), RequestInvalid, path=path)


@each_row("place", TEXTS)
def test_a_text_is_text(desk: Desk, place: str) -> None:
    path, ask = TEXTS[place]
    desk.refuses(lambda desk: ask(desk, 7), RequestInvalid, path=path)


@each_row("tenant", [NUL, HALF, HUGE])
@pytest.mark.parametrize(
    "ask",
    [
        lambda desk, tenant: desk.engine.for_tenant(tenant).get_run(desk.run.id),
        lambda desk, tenant: desk.engine.for_tenant(tenant).list_runs(),
        lambda desk, tenant: desk.engine.for_tenant(tenant).list_workers(),
        lambda desk, tenant: desk.engine.for_tenant(tenant).list_transitions(),
        lambda desk, tenant: desk.engine.for_tenant(tenant).measure_transitions(),
    ],
    ids=["get_run", "list_runs", "list_workers", "list_transitions", "measure_transitions"],
)
def test_no_question_is_answered_to_an_impossible_tenant(desk: Desk, ask: Asked, tenant: str) -> None:
    desk.refuses(lambda desk: ask(desk, tenant), RequestInvalid, NotFound, path="tenant")


@each_row("text", [NUL, HALF])
@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("phase", lambda desk, text: desk.engine.list_runs(RunFilter(phase=text))),
        ("after", lambda desk, text: desk.engine.list_runs(after=text)),
        ("run_id", lambda desk, text: desk.engine.list_transitions(run_id=text)),
    ],
    ids=["phase", "after", "run_id"],
)
def test_no_question_is_asked_with_impossible_words(desk: Desk, path: str, ask: Asked, text: str) -> None:
    desk.refuses(lambda desk: ask(desk, text), RequestInvalid, NotFound, path=path)


def test_an_unknown_phase_is_refused(desk: Desk) -> None:
    wrong: Any = "runing"
    desk.refuses(lambda desk: desk.engine.list_runs(RunFilter(phase=wrong)), RequestInvalid, path="phase")


# JSON


def nest(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


NOT_JSON = {
    "an object": object(),
    "a set of objects": {object()},
    "an object inside": {"deep": [1, {"er": object()}]},
    "a key that is no text": {(1, 2): 3},
    "a function": print,
    "nan": math.nan,
    "infinity inside": {"a": [1.0, math.inf]},
    "half a surrogate": {"a": HALF},
    "half a surrogate as key": {HALF: 1},
    "100,000 deep": nest(100_000),
    "a circle": circular(),
    "10 MB": HUGE,
    "10 MB of keys": {f"{'k' * 100}{number}": number for number in range(100_000)},
    "a number of 80 bits": 2**80,
}
JSON_PLACES: dict[str, tuple[str, Asked]] = {
    "payload of a run": ("payload", lambda desk, value: submit(desk.engine, NewTask(name="a"), payload=value)),
    "payload of a task": ("tasks[0].payload", lambda desk, value: submit(desk.engine, NewTask(name="a", payload=value))),
    "payload of a task with a key": (
        "tasks[0].payload",
        lambda desk, value: desk.engine.submit_run(
            NewRun(name="a", tasks=(NewTask(name="a", payload=value),)), request_id="a key"
        ),
    ),
    "payload of one more task": (
        "tasks[0].payload",
        lambda desk, value: desk.engine.add_tasks(desk.run.id, [NewTask(name="more", payload=value)]),
    ),
    "payload of one more task with a key": (
        "tasks[0].payload",
        lambda desk, value: desk.engine.add_tasks(desk.run.id, [NewTask(name="more", payload=value)], request_id="a key"),
    ),
    "output of a task": (
        "output",
        lambda desk, value: desk.engine.complete_task(desk.running.id, 1, AttemptReport(output=value)),
    ),
    "output of a task with a key": (
        "output",
        lambda desk, value: desk.engine.complete_task(desk.running.id, 1, AttemptReport(output=value), request_id="a key"),
    ),
    "output of a run": ("output", lambda desk, value: desk.engine.signal_run(desk.run.id, "checks_passed", output=value)),
    "output of a run with a key": (
        "output",
        lambda desk, value: desk.engine.signal_run(desk.run.id, "checks_passed", output=value, request_id="a key"),
    ),
}


@each_row("bad", NOT_JSON)
@each_row("place", JSON_PLACES)
def test_what_json_cannot_hold_is_refused(desk: Desk, place: str, bad: str) -> None:
    path, ask = JSON_PLACES[place]
    desk.refuses(lambda desk: ask(desk, NOT_JSON[bad]), RequestInvalid, path=path)


@each_row("depth", [100, 300, 500, 800, 900, 930, 950, 960, 970, 980, 990, 1000, 1500, 5000])
def test_what_is_nested_is_kept_whole_or_refused(desk: Desk, depth: int) -> None:
    """Where the limit lies is nobody's business, but there is no depth at which something else happens."""
    new = NewRun(name="deep", tasks=(NewTask(name="a", payload=nest(depth)),))
    for key in (None, f"depth {depth}"):
        with suppress(RequestInvalid):
            run = desk.ask(partial(submit_new, new=new, key=key))
            assert desk.somebody.ask("SELECT payload FROM task WHERE run_id = :run", run=run.id) == [
                ("[" * depth + "null" + "]" * depth,)
            ]


def test_payloads_that_are_too_large_together_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "MAX_PAYLOADS_BYTES", 3 << 20)
    tasks = [NewTask(name=f"t{number}", payload="x" * (1 << 19)) for number in range(12)]
    desk.refuses(lambda desk: submit(desk.engine, *tasks[:7]), RequestInvalid)
    run = desk.ask(lambda desk: submit(desk.engine, *tasks[:5]))
    desk.refuses(lambda desk: desk.engine.add_tasks(run.id, tasks[5:]), RequestInvalid)
    desk.ask(lambda desk: desk.engine.add_tasks(run.id, tasks[5:10]))


def test_a_payload_of_a_megabyte_is_kept_and_one_byte_more_is_refused(desk: Desk) -> None:
    fits = "x" * (MAX_PAYLOAD_BYTES - 2)
    run = desk.ask(lambda desk: submit(desk.engine, NewTask(name="a", payload=fits)))
    assert desk.somebody.ask("SELECT length(payload) FROM task WHERE run_id = :run", run=run.id) == [(MAX_PAYLOAD_BYTES,)]
    desk.refuses(lambda desk: submit(desk.engine, NewTask(name="a", payload=fits + "x")), RequestInvalid)


@settings(max_examples=40)
@given(
    payload=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_reaches_the_worker_as_it_was(desk: Desk, payload: Any) -> None:
    """NUL, too: in JSON it is an escape like any other."""
    import msgspec

    run = desk.ask(lambda desk: submit(desk.engine, NewTask(name="a", payload=payload)))
    ((stored,),) = desk.somebody.ask("SELECT payload FROM task WHERE run_id = :run", run=run.id)
    assert msgspec.json.decode(stored) == payload


# signals


@each_row("signal", ["complete", "fail", "claim", "expire", "lease_lost", "delay_over", "children_done", "overspend"])
def test_people_do_not_speak_for_a_worker_or_the_engine(desk: Desk, signal: str) -> None:
    for ask in (
        lambda desk: desk.engine.signal_task(desk.running.id, signal),
        lambda desk: desk.engine.signal_task(desk.waiting.id, signal),
    ):
        error = desk.refuses(ask, RequestInvalid, path="signal")
        assert "people may say: approve" in str(error)


@each_row("signal", ["start", "complete", "fail", "wait", "proceed", "expire", "delay_over"])
def test_people_do_not_say_what_follows_from_the_tasks_of_a_run(desk: Desk, signal: str) -> None:
    desk.refuses(lambda desk: desk.engine.signal_run(desk.run.id, signal), RequestInvalid, path="signal")
    desk.refuses(
        lambda desk: desk.engine.request_transition(Kind.RUN, desk.run.id, trigger=signal), RequestInvalid, path="signal"
    )


@pytest.mark.parametrize(
    ("lifecycle", "signal"),
    [
        ("agent", "lease_lost"),
        ("approval", "expire"),
        ("pipeline", "expire"),
        ("pipeline", "lease_lost"),
        ("orchestrated", "expire"),
    ],
)
async def test_nor_what_only_leads_there_by_a_fallback(
    database_url: str, clock: ManualClock, lifecycle: str, signal: str
) -> None:
    """A signal that its machine has no move for and that stands for `fail` there."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), lifecycle=lifecycle)
        await claim_one(engine, await register(engine))
        (task,) = await engine.list_tasks(run.id)
        with pytest.raises((RequestInvalid, TransitionRefused)):
            await engine.signal_task(task.id, signal)
        assert await engine.get_task(task.id) == task


@each_row("signal", ["register", "release", "suspect", "recover"])
def test_people_do_not_say_what_a_worker_does(desk: Desk, signal: str) -> None:
    desk.refuses(lambda desk: desk.engine.signal_worker(desk.worker.id, signal), RequestInvalid, path="signal")


@each_row("signal", ["claim", "approve", "accept", "retry", "lease_lost", "no_such_signal", ""])
def test_a_worker_says_only_what_workers_say(desk: Desk, signal: str) -> None:
    error = desk.refuses(lambda desk: desk.engine.report_attempt(desk.running.id, 1, signal), RequestInvalid, path="signal")
    assert "It may say: complete" in str(error)


@each_row("signal", ["", "no_such_signal", "CANCEL", "cancel ", "SUCCEEDED"])
def test_a_signal_that_does_not_exist_is_refused_with_what_is_allowed(desk: Desk, signal: str) -> None:
    for ask in (
        lambda desk: desk.engine.signal_task(desk.running.id, signal),
        lambda desk: desk.engine.signal_run(desk.run.id, signal),
        lambda desk: desk.engine.signal_worker(desk.worker.id, signal),
    ):
        error = desk.refuses(ask, TransitionRefused, RequestInvalid)
        assert "cancel" in str(error) or "pause" in str(error)


@each_row("to_state", ["", "NO_SUCH_STATE", "running", "SUCCEEDED"])
def test_a_state_that_does_not_exist_is_unknown(desk: Desk, to_state: str) -> None:
    desk.refuses(lambda desk: desk.engine.request_transition(Kind.WORKER, desk.worker.id, to_state=to_state), UnknownName)


@each_row("to_state", ["INITIALIZING", "SHUTDOWN", "BUSY"])
def test_a_state_that_cannot_be_reached_is_an_answer(desk: Desk, to_state: str) -> None:
    with desk.nothing_changes():
        result = desk.ask(lambda desk: desk.engine.request_transition(Kind.WORKER, desk.worker.id, to_state=to_state))
    assert not result.success
    assert result.error


def test_a_transition_has_one_aim(desk: Desk) -> None:
    run_id = desk.run.id
    desk.refuses(lambda desk: desk.engine.request_transition(Kind.RUN, run_id), RequestInvalid, path="to_state")
    desk.refuses(
        lambda desk: desk.engine.request_transition(Kind.RUN, run_id, to_state="PAUSED", trigger="pause"),
        RequestInvalid,
        path="to_state",
    )


def test_a_breaker_is_not_called_a_worker(desk: Desk) -> None:
    """Document 000 moves jobs and workers; a breaker has a command of its own."""
    breaker = desk.ask(lambda desk: desk.engine.get_breaker("compiler"))
    error = desk.refuses(lambda desk: desk.engine.request_transition(Kind.BREAKER, breaker.id, trigger="reset"))
    assert "worker" not in str(error)


@each_row("epoch", [0, -1, 2, 10**6, 2**63, 2**80])
@each_row("key", [None, "a key"])
def test_an_attempt_that_never_was_changes_nothing(desk: Desk, epoch: int, key: str | None) -> None:
    task_id = desk.running.id
    for ask in (
        lambda desk: desk.engine.complete_task(task_id, epoch, request_id=key),
        lambda desk: desk.engine.fail_task(task_id, epoch, AttemptReport(error="no"), request_id=key),
        lambda desk: desk.engine.report_attempt(task_id, epoch, "ask", AttemptReport(question="why?"), request_id=key),
        lambda desk: desk.engine.report_attempt(task_id, epoch, "expire", request_id=key),
        lambda desk: desk.engine.report_attempt(task_id, epoch, report=AttemptReport(cost_usd=Decimal(1))),
        lambda desk: desk.engine.complete_task(desk.waiting.id, epoch, request_id=key),
    ):
        error = desk.refuses(ask, LeaseLost)
        assert "nothing was changed" in str(error)


@each_row("epoch", [None, "1", 1.5, math.nan, True, [1]])
def test_an_epoch_is_a_whole_number(desk: Desk, epoch: Any) -> None:
    desk.refuses(lambda desk: desk.engine.complete_task(desk.running.id, epoch), RequestInvalid, path="epoch")


def test_an_instant_says_its_time_zone(desk: Desk) -> None:
    until = datetime(2031, 1, 1)  # noqa: DTZ001 - the point
    desk.refuses(
        lambda desk: desk.engine.report_attempt(desk.running.id, 1, "interrupt", AttemptReport(usage_limit_until=until)),
        RequestInvalid,
        path="usage_limit_until",
    )


@each_row("signal", [None, "fail", "complete", "expire"])
def test_a_usage_limit_goes_with_an_interruption_only(desk: Desk, signal: str | None) -> None:
    report = AttemptReport(usage_limit_until=datetime(2031, 1, 1, tzinfo=UTC))
    desk.refuses(
        lambda desk: desk.engine.report_attempt(desk.running.id, 1, signal, report), RequestInvalid, path="usage_limit_until"
    )


# the stream

BAD_POSITIONS = [
    "",
    "abc",
    "-1",
    "1.5",
    "1e3",
    "nan",
    "0x10",
    " 1",
    "1-",
    "-1-1",
    "1-1-1",
    "9" * 40,
    "9" * 25 + "-1",
    "١",
    NUL,
    HALF,
]


@each_row("position", BAD_POSITIONS)
def test_a_malformed_position_is_refused(desk: Desk, position: str) -> None:
    error = desk.refuses(lambda desk: desk.engine.list_transitions(after=position), RequestInvalid, path="after")
    assert "Pass a position" in str(error)


# neighbours and tenants


def test_a_refused_request_makes_no_tenant(desk: Desk) -> None:
    for ask in (
        lambda desk: desk.engine.for_tenant("passer-by").signal_run("run_of_nobody", "cancel"),
        lambda desk: desk.engine.for_tenant("passer-by").claim_tasks("worker_of_nobody"),
        lambda desk: submit_with_unknown_tool(desk, "passer-by"),
    ):
        desk.refuses(ask, RequestError)


def submit_with_unknown_tool(desk: Desk, tenant: str) -> Awaitable[Run]:
    return desk.engine.for_tenant(tenant).submit_run(NewRun(name="a", tasks=(NewTask(name="a", tool="none"),)))


def test_what_belongs_to_another_tenant_is_not_found(desk: Desk) -> None:
    for ask, kind in (
        (lambda desk: desk.engine.for_tenant("default2").get_run(desk.run.id), "run"),
        (lambda desk: desk.engine.for_tenant("default2").list_tasks(desk.run.id), "run"),
        (lambda desk: desk.engine.for_tenant("default2").get_task(desk.running.id), "task"),
        (lambda desk: desk.engine.for_tenant("default2").get_breaker("compiler"), "tool"),
    ):
        error = desk.refuses(ask, NotFound)
        assert isinstance(error, NotFound)
        assert error.kind == kind


# a closed engine

AFTER_CLOSING: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "submit_run": lambda engine: submit(engine, NewTask(name="a")),
    "register_worker": lambda engine: engine.register_worker("bob"),
    "claim_tasks": lambda engine: engine.claim_tasks("worker", wait_seconds=30),
    "tend": lambda engine: engine.tend(),
    "repair": lambda engine: engine.repair(),
    "get_run": lambda engine: engine.get_run("run"),
    "list_runs": lambda engine: engine.list_runs(),
    "list_transitions": lambda engine: engine.list_transitions(),
    "last_position": lambda engine: engine.last_position(),
    "diagnose": lambda engine: engine.diagnose(),
    "watch": lambda engine: anext(engine.watch()),
}


async def test_a_closed_engine_says_so(database_url: str, clock: ManualClock, subtests: pytest.Subtests) -> None:
    async with open_engine(database_url, clock) as engine:
        await submit(engine, NewTask(name="a"))
    for method, ask in AFTER_CLOSING.items():
        with subtests.test(method), pytest.raises(EngineClosed):
            await asyncio.wait_for(ask(engine), PATIENCE_SECONDS)


async def test_closing_twice_is_closing_once(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        await engine.close()
    await engine.close()


async def test_whoever_waits_when_the_engine_is_closed_is_told(database_url: str) -> None:
    from pointsman import app

    async with app.open(database_url, keeps=False) as engine:
        worker = await engine.register_worker("bob")
        position = await engine.last_position()

        async def watch() -> None:
            async for _ in engine.watch(after=position):
                pass

        waiting = [asyncio.create_task(engine.claim_tasks(worker.id, wait_seconds=600)), asyncio.create_task(watch())]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert not done
    done, pending = await asyncio.wait(waiting, timeout=5)
    for each in pending:
        each.cancel()
    assert [type(each.exception()) for each in waiting if each in done] == [EngineClosed, EngineClosed]


@pytest.mark.parametrize("lifecycle", ["pipeline", "orchestrated", "agent"])
async def test_a_gate_needs_a_lifecycle_that_has_gates(database_url: str, clock: ManualClock, lifecycle: str) -> None:
    """Nobody could ever approve it, and its run would wait for ever."""
    async with open_engine(database_url, clock) as engine:
        with pytest.raises(RequestInvalid, match=r"tasks\[1\].gate: .* has no gates"):
            await submit(engine, NewTask(name="a"), NewTask(name="b", gate=True), lifecycle=lifecycle)
        assert await engine.list_runs() == []
        run = await submit(engine, NewTask(name="a"), lifecycle=lifecycle)
        with pytest.raises(RequestInvalid, match="has no gates"):
            await engine.add_tasks(run.id, [NewTask(name="b", gate=True)])
        assert len(await engine.list_tasks(run.id)) == 1


async def test_nothing_is_added_to_a_run_that_is_in_its_last_checks(database_url: str, clock: ManualClock) -> None:
    """Its tasks are done: another one would keep it from ending, whatever its checks say."""
    async with open_engine(database_url, clock) as engine:
        run = await submit(engine, NewTask(name="a"), lifecycle="orchestrated", checks=True)
        worker = await register(engine, lifecycle="orchestrated")
        claim = await claim_one(engine, worker)
        await engine.complete_task(claim.task_id, claim.epoch)
        await engine.report_attempt(claim.task_id, claim.epoch, "checks_passed")
        assert await state_of(engine, run) == "validating"
        with pytest.raises(RequestInvalid, match="only its checks are left"):
            await engine.add_tasks(run.id, [NewTask(name="b")])
