"""`approval`: a task that people decide, and that no worker runs."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import ClassVar

from pointsman.flows.model import Approval, FlowTask

OWN_KEYS = frozenset(("approval", "description", "needs", "critical"))
"""The keys that mean something without a worker."""


class ApprovalTask(FlowTask):
    """A decision of people."""

    kind = "approval"

    approval: Approval
    """A decision of people instead of work: a text that says what to decide, or more (see below)."""

    def summary(self) -> str:
        return self.approval.prompt.partition("\n")[0] or "waits for an approval"

    def check(self, given: Set[str]) -> Iterator[tuple[str, str, str]]:
        for key in sorted(given - OWN_KEYS):
            yield key, f"`{key}` has no effect on an approval, which no worker runs.", "Move it to a task of its own."
        people, quorum, written = self.approval.by, self.approval.quorum, self.approval.model_fields_set
        if "prompt" in written and not self.approval.prompt.strip():
            advice = "Write what to decide, or `approval: {}` to ask without a prompt."
            yield "approval", "The prompt of its approval is empty.", advice
        if "by" in written and not people:
            yield "approval", "`by` names nobody.", "Name who may decide, or remove `by`: then anybody may."
        if people and quorum > len(set(people)):
            advice = "Name more people in `by`, or lower `quorum`."
            yield "approval", f"{quorum} people have to approve, but `by` names only {len(set(people))}.", advice
        if self.approval.on_expire and self.approval.expires is None:
            yield "approval", "`on_expire` has no effect without `expires`.", "Add `expires`, such as `expires: 2d`."


class Gate:
    """In the place of a runner: nothing is started, and people move the task on."""

    task_model: ClassVar[type[FlowTask]] = ApprovalTask
