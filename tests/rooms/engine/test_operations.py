"""An operation is declared once: validation, hash, JSON and JSON Schema follow from its fields."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from tests.rooms.engine.harness import ManualClock, claim_one, open_engine, path_of, register, state_of, submit, task_of

from pointsman.engine.engine import TenantEngine
from pointsman.engine.fields import whole
from pointsman.engine.operation import Caller, Operation, answer_type, name_of, read_operation, schema_of, validate
from pointsman.engine.operations import OPERATIONS
from pointsman.engine.operations.attempts import AttemptReport, ReportAttempt
from pointsman.engine.operations.runs import SetBudget, SignalRun, SubmitRun
from pointsman.engine.operations.workers import RegisterWorker
from pointsman.engine.submit import NewRun, NewTask
from pointsman.errors import KeyReused, LeaseLost, RequestInvalid


class SignalRunLoudly(SignalRun, frozen=True):
    """Send a run a signal, with a volume."""

    volume: Annotated[int, whole(1, 11), "How loud."] = 1


def test_a_parameter_that_is_added_is_validated_hashed_and_in_the_schema() -> None:
    loud = SignalRunLoudly("run_1", "pause", volume=12, request_id="key")
    with pytest.raises(RequestInvalid, match="volume: Must be a whole number from 1 to 11, not 12"):
        validate(loud)
    quiet = msgspec.structs.replace(loud, volume=2)
    assert quiet.request != loud.request
    assert quiet.request == msgspec.structs.replace(quiet).request
    described = schema_of(SignalRunLoudly)["properties"]["volume"]
    assert described == {"type": "integer", "minimum": 1, "maximum": 11, "description": "How loud.", "default": 1}
    assert read_operation(SignalRunLoudly, {"run_id": "run_1", "signal": "pause", "volume": 3}).volume == 3
    with pytest.raises(RequestInvalid, match="volume"):
        read_operation(SignalRunLoudly, {"run_id": "run_1", "signal": "pause", "volume": "3"})


BY_HAND = {"claim_tasks": {"wait_seconds", "line"}, "send_heartbeat": set(), "report_attempts": set()}
"""Methods that do more than to perform their operation, with the parameters that the operation does not have."""
ENGINE = TenantEngine.__new__(TenantEngine)
"""Calls make operations at once, and perform them when they are awaited: no database is needed for that."""


def test_every_operation_is_a_method_of_the_engine_with_its_fields_as_parameters() -> None:
    for name, operation in OPERATIONS.items():
        assert name == name_of(operation)
        if name == "give_up_tasks":
            continue  # follows from a heartbeat
        fields = [field.name for field in msgspec.structs.fields(operation)]
        if name in BY_HAND:
            parameters = set(inspect.signature(getattr(TenantEngine, name)).parameters) - {"self"} - BY_HAND[name]
            assert parameters <= set(fields), name
        else:
            # The type checker sees the fields; at run time, an unknown one is refused, and so is one too few.
            with pytest.raises(TypeError):
                getattr(ENGINE, name)(nonsense=1)
            given = {field.name: None for field in msgspec.structs.fields(operation) if field.required}
            getattr(ENGINE, name)(**given).close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_field_of_every_operation_is_described(name: str) -> None:
    schema = schema_of(OPERATIONS[name])
    assert schema["description"].endswith(".")
    undescribed = [field for field, described in schema["properties"].items() if not described.get("description")]
    assert undescribed == []
    assert "caller" not in schema["properties"], "only Python says who calls"
    assert schema["additionalProperties"] is False
    assert answer_type(OPERATIONS[name]) is not None


BODIES: dict[str, tuple[dict[str, Any], Operation[Any]]] = {
    "submit_run": (
        {"name": "n", "tasks": [{"name": "a", "budget_usd": "0.25", "depends_on": ["b"]}, {"name": "b"}], "reason": "why"},
        SubmitRun(
            NewRun(name="n", tasks=(NewTask(name="a", budget_usd=Decimal("0.25"), depends_on=["b"]), NewTask(name="b"))),
            reason="why",
        ),
    ),
    "report_attempt": (
        {"task_id": "t", "epoch": 2, "signal": "interrupt", "error": "no", "usage_limit_until": "2030-01-01T00:00:00Z"},
        ReportAttempt("t", 2, "interrupt", AttemptReport(error="no", usage_limit_until=datetime(2030, 1, 1, tzinfo=UTC))),
    ),
    "set_budget": ({"run_id": "r", "budget_usd": None, "request_id": "k"}, SetBudget("r", None, request_id="k")),
}


@pytest.mark.parametrize("name", BODIES)
def test_an_operation_is_read_from_json(name: str) -> None:
    body, expected = BODIES[name]
    assert read_operation(OPERATIONS[name], msgspec.json.decode(msgspec.json.encode(body))) == expected


def test_json_is_refused_with_every_problem_and_its_path() -> None:
    body = {
        "name": "",
        "tasks": [{"name": "a", "depend_on": ["b"], "max_retries": -1}, {"payload": 1}, 7],
        "worker_count": 99,
        "caller": {"tenant": "other"},
    }
    with pytest.raises(RequestInvalid) as refused:
        read_operation(SubmitRun, body)
    problems = {problem.path: problem.message for problem in refused.value.problems}
    assert problems.keys() == {
        "name",
        "tasks[0].depend_on",
        "tasks[0].max_retries",
        "tasks[1].name",
        "tasks[2]",
        "worker_count",
        "caller",
    }
    assert "Did you mean depends_on?" in problems["tasks[0].depend_on"]


@pytest.mark.parametrize("body", [None, [], "text", 3], ids=repr)
def test_what_is_not_an_object_is_refused(body: object) -> None:
    with pytest.raises(RequestInvalid, match="Must be an object"):
        read_operation(SetBudget, body)


async def test_an_engine_speaks_for_its_tenant_and_its_actor(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        acme = engine.for_tenant("acme", actor="ada")
        run = await acme.submit_run(NewRun(name="a", tasks=(NewTask(name="a"),)))
        assert (run.tenant, run.actor) == ("acme", "ada")
        assert [each.id for each in await acme.list_runs()] == [run.id]
        assert await engine.list_runs() == []
        with pytest.raises(TypeError, match="for_tenant"):
            await acme.submit_run(NewRun(name="b", tasks=(NewTask(name="a"),)), caller=Caller("other"))


async def test_subtasks_and_completion_are_one_commit(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="all"))
        claim = await claim_one(engine, worker)
        subtasks = tuple(NewTask(name=f"all[{index}]", parent="all") for index in range(3))
        before = engine.commit_metrics.batches
        task = await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(subtasks=subtasks))
        assert engine.commit_metrics.batches == before + 1
        assert (task.state, task.has_subtasks) == ("BLOCKED", True)
        assert [each.name for each in await engine.list_tasks(run.id)] == ["all", "all[0]", "all[1]", "all[2]"]


async def test_subtasks_of_a_report_that_is_refused_are_not_added(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="all"))
        claim = await claim_one(engine, worker)
        sound = (NewTask(name="all[0]", parent="all"),)
        with pytest.raises(LeaseLost):
            await engine.complete_task(claim.task_id, claim.epoch + 1, AttemptReport(subtasks=sound))
        unsound = (*sound, NewTask(name="all[1]", parent="nobody"))
        with pytest.raises(RequestInvalid, match="no task 'nobody'"):
            await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(subtasks=unsound))
        assert [each.name for each in await engine.list_tasks(run.id)] == ["all"]
        assert await state_of(engine, run, "all") == "RUNNING"


async def test_subtasks_that_an_earlier_attempt_added_are_not_added_again(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        run = await submit(engine, NewTask(name="all"))
        claim = await claim_one(engine, worker)
        await engine.add_tasks(run.id, [NewTask(name="all[0]", parent="all")])
        subtasks = tuple(NewTask(name=f"all[{index}]", parent="all") for index in range(2))
        await engine.complete_task(claim.task_id, claim.epoch, AttemptReport(subtasks=subtasks))
        assert [each.name for each in await engine.list_tasks(run.id)] == ["all", "all[0]", "all[1]"]
        added = await task_of(engine, run, "all[1]")
        created = (await engine.list_history(added.id))[0]
        assert (created.actor, created.reason) == (worker.id, "subtasks of all")
        assert await path_of(engine, added.id) == ["PENDING", "QUEUED"]


async def test_one_key_is_one_operation_whatever_its_signal(database_url: str, clock: ManualClock) -> None:
    async with open_engine(database_url, clock) as engine:
        worker = await register(engine)
        await submit(engine, NewTask(name="a"))
        claim = await claim_one(engine, worker)
        await engine.report_attempt(claim.task_id, claim.epoch, report=AttemptReport(cost_usd=Decimal(1)), request_id="k")
        with pytest.raises(KeyReused):
            await engine.complete_task(claim.task_id, claim.epoch, request_id="k")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"reports": []}, "reports"),
        ({"reports": [{"task_id": "t", "epoch": 1, "signal": "ask"}]}, "reports[0].question"),
        ({"reports": [{"task_id": "t", "epoch": 1, "signal": "complete"}], "request_id": "key"}, "request_id"),
        ({"reports": [{"task_id": "t", "epoch": 1, "request_id": "key"}]}, "request_id"),
        ({"reports": [{"task_id": 5, "epoch": 1}]}, "reports[0].task_id"),
    ],
)
def test_reports_that_come_together_are_checked_like_single_ones(body: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        read_operation(OPERATIONS["report_attempts"], body)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_an_impossible_id_is_one_problem_among_others() -> None:
    with pytest.raises(RequestInvalid) as refused:
        read_operation(SetBudget, {"run_id": 5, "budget_usd": "x"})
    assert {problem.path for problem in refused.value.problems} == {"run_id", "budget_usd"}


def test_the_order_of_a_set_does_not_change_the_hash_of_a_request() -> None:
    one = RegisterWorker("w", capabilities={"a", "b", "c", "d"}, request_id="k")
    two = RegisterWorker("w", capabilities={"d", "c", "b", "a"}, request_id="k")
    assert one.request == two.request


def test_a_request_cannot_ask_for_the_tasks_of_other_tenants() -> None:
    assert "serves" not in schema_of(OPERATIONS["register_worker"])["properties"]
    with pytest.raises(RequestInvalid, match="serves: There is no such field"):
        read_operation(OPERATIONS["register_worker"], {"name": "spy", "serves": "all"})


def test_only_the_engine_itself_answers_for_the_whole_database() -> None:
    for name in (
        "diagnose",
        "repair",
        "tend",
        "list_duty_failures",
        "for_tenant",
        "authenticate",
        "list_tenants",
        "list_all_keys",
    ):
        assert not hasattr(TenantEngine, name)
