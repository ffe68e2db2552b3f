"""Every operation that people, workers and servers may ask for, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pointsman.engine.operation import Operation, name_of
from pointsman.engine.operations.attempts import ReportAttempt, ReportAttempts
from pointsman.engine.operations.keys import CreateKey, RevokeKey, RotateKey
from pointsman.engine.operations.lifecycles import AddLifecycle
from pointsman.engine.operations.outbox import RetryNotifications
from pointsman.engine.operations.runs import AddTasks, ApproveRun, SetBudget, SignalRun, SignalRuns, StartRun, SubmitRun
from pointsman.engine.operations.tasks import DeleteTask, SignalTask
from pointsman.engine.operations.templates import StoreTemplate
from pointsman.engine.operations.tenants import AddTenant, SetQuotas, SetTenantBudget
from pointsman.engine.operations.tools import DeclareTool, ResetBreaker, TripBreaker
from pointsman.engine.operations.transition import RequestTransition
from pointsman.engine.operations.workers import ClaimTasks, GiveUpTasks, RegisterWorker, SendHeartbeat, SignalWorker

_ALL: tuple[type[Operation[Any]], ...] = (
    SubmitRun,
    AddTasks,
    SignalRun,
    SignalRuns,
    ApproveRun,
    StartRun,
    SetBudget,
    SignalTask,
    DeleteTask,
    StoreTemplate,
    AddLifecycle,
    RequestTransition,
    RegisterWorker,
    SignalWorker,
    SendHeartbeat,
    ClaimTasks,
    GiveUpTasks,
    ReportAttempt,
    ReportAttempts,
    DeclareTool,
    ResetBreaker,
    TripBreaker,
    SetTenantBudget,
    SetQuotas,
    AddTenant,
    CreateKey,
    RotateKey,
    RevokeKey,
    RetryNotifications,
)
OPERATIONS: Mapping[str, type[Operation[Any]]] = {name_of(operation): operation for operation in _ALL}
