"""The machines in use: the version that a new entity gets, and the one that an existing entity began with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TypeVar

from pointsman.errors import LifecycleError, UnknownName
from pointsman.kernel.machine import Kind, Lifecycle, Machine, Outcome, Phase
from pointsman.lifecycles import DEFAULT, restore_lifecycle
from pointsman.store.contract import Reader, Transaction
from pointsman.store.rows import MachineRow

Of = TypeVar("Of")


def once_for_each_machine(compute: Callable[[Machine], Of]) -> Callable[[Machine], Of]:
    """Keep what follows from a machine alone. To hash a machine would cost more than most of these."""
    known: dict[int, tuple[Machine, Of]] = {}

    @wraps(compute)
    def find(machine: Machine) -> Of:
        found = known.get(id(machine))
        if found is None:
            found = known[id(machine)] = machine, compute(machine)  # kept with it, so that the number stays its own
        return found[1]

    return find


class Machines:
    """All machines in the database, by their number there."""

    def __init__(self, lifecycles: Iterable[Lifecycle]) -> None:
        self.lifecycles: Mapping[str, Lifecycle] = {lifecycle.name: lifecycle for lifecycle in lifecycles}
        for machine, _ in self._in_use():
            check_fitness(machine)
        self._stored: dict[tuple[str, int], Lifecycle] = {}
        """By name and version: those that another process has stored, and this one has needed."""
        self._machines: dict[int, Machine] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def register(self, transaction: Transaction) -> None:
        """Store every machine of every lifecycle, and learn the numbers of those that are stored already."""
        self._renew_rules(transaction)
        in_use = self._in_use()
        for row, (machine, _) in zip(_store(transaction, in_use), in_use, strict=True):
            self._learn(row.id, machine)

    def _renew_rules(self, transaction: Transaction) -> None:
        """Let the database check the tasks of runs whose machines were stored before it could.

        Migrations know the shipped machines by name. Those of users are stored with their files, which only this side reads.
        """
        in_use = {(machine.name, machine.version): machine for machine, _ in self._in_use()}
        for row in transaction.list_unguarded_machines():
            machine = in_use.get((row.name, row.version)) or _try_restore(row)
            if machine is not None and row.fingerprint == take_fingerprint(machine):
                transaction.guard_rules(row.id, machine)

    def lifecycle(self, name: str, reader: Reader) -> Lifecycle:
        """The one with which this process was opened, or else the last version in the database."""
        if known := self.lifecycles.get(name):
            return known
        stored = reader.list_machines()
        rows = [row for row in stored if row.lifecycle == name]
        if not rows:
            raise UnknownName("lifecycle", name, dict.fromkeys([*self.lifecycles, *(row.lifecycle for row in stored)]))
        last = max(rows, key=lambda row: row.version)
        lifecycle = self._stored.get((name, last.version))
        if lifecycle is None:
            lifecycle = self._stored[name, last.version] = restore_lifecycle(name, last.definition)
        for row in rows:
            if row.version == last.version and row.id not in self._machines:
                self._learn(row.id, lifecycle.machine(row.name))
        return lifecycle

    @property
    def default_lifecycle(self) -> Lifecycle:
        return self.lifecycles[DEFAULT]

    def number(self, machine: Machine) -> int:
        return self._numbers[machine.name, machine.version]

    def machine(self, number: int, reader: Reader) -> Machine:
        """The machine with this number. One that another process registered is read from the database."""
        machine = self._machines.get(number)
        if machine is None:
            row = next(row for row in reader.list_machines() if row.id == number)
            machine = restore(row)
            self._learn(number, machine)
        return machine

    def learn_all(self, reader: Reader) -> None:
        """Read the machines that other processes registered, from their own files."""
        for row in reader.list_machines():
            if row.id not in self._machines:
                self._learn(row.id, restore(row))

    def list_all(self, reader: Reader) -> list[Machine]:
        """The last version of every machine in the database, by name."""
        self.learn_all(reader)
        found = {machine.name: machine for machine in sorted(self._machines.values(), key=lambda each: each.version)}
        return [found[name] for name in sorted(found)]

    @property
    def numbered(self) -> Mapping[int, Machine]:
        """The machines that this process has read, by their numbers."""
        return self._machines

    def known(self, number: int) -> Machine | None:
        """The machine with this number, if this process has read it."""
        return self._machines.get(number)

    def may_complete(self, number: int, state: str, *, has_checks: bool) -> bool:
        """Whether a run in this state takes `complete`, `start` as the step before it, or the end of checks that it has not."""
        machine = self.known(number)
        signals = ("complete", "start") if has_checks else ("complete", "start", "checks_passed")
        return machine is not None and any(machine.moves(state, signal) for signal in signals)

    def limits(self) -> list[tuple[int, str, float]]:
        """Every state with a longest stay, as (machine, state, seconds)."""
        return [
            (number, state.name, state.longest_stay_seconds)
            for number, machine in self._machines.items()
            for state in machine.states
            if state.longest_stay_seconds is not None
        ]

    def _in_use(self) -> list[tuple[Machine, str]]:
        in_use = {}
        for lifecycle in self.lifecycles.values():
            for machine in lifecycle.machines:
                in_use[machine.name] = (machine, lifecycle.text)
        return list(in_use.values())

    def _learn(self, number: int, machine: Machine) -> None:
        self._machines[number] = machine
        self._numbers[machine.name, machine.version] = number


def add_lifecycle(transaction: Transaction, lifecycle: Lifecycle) -> list[MachineRow]:
    """Store the machines of another lifecycle. A process learns them when it needs them: then they are committed."""
    for machine in lifecycle.machines:
        check_fitness(machine)
    return _store(transaction, [(machine, lifecycle.text) for machine in lifecycle.machines])


def _store(transaction: Transaction, machines: Sequence[tuple[Machine, str]]) -> list[MachineRow]:
    """The rows of machines, each with the text of its lifecycle; those that are stored already stay as they are."""
    stored = {(row.name, row.version): row for row in transaction.list_machines()}
    found = [(machine, text, stored.get((machine.name, machine.version))) for machine, text in machines]
    for machine, text, row in found:
        if row and row.definition != text and row.fingerprint != take_fingerprint(machine):
            raise LifecycleError(
                f"Version {machine.version} of {machine.name} is already in use with other transitions. "
                f"Give the changed lifecycle '{machine.lifecycle}' a new version number."
            )
    return [
        row or transaction.insert_machine(machine, fingerprint=take_fingerprint(machine), definition=text)
        for machine, text, row in found
    ]


def check_fitness(machine: Machine) -> None:
    """Refuse a valid machine that needs what the engine cannot do: run a task without a worker, or undo a success."""
    if machine.kind is not Kind.TASK:
        return
    for move in machine.transitions:
        left, entered = machine.state(move.from_state), machine.state(move.to_state)
        begins = entered.phase is Phase.ACTIVE and (left.phase is not Phase.ACTIVE or left is entered)
        if begins and move.signal != "claim":
            raise LifecycleError(
                f"{machine.name}: '{move}' starts work without a worker. "
                "Let it lead to a state of phase queued, from where a claim starts the work."
            )
        if left.outcome is Outcome.SUCCESS:
            raise LifecycleError(
                f"{machine.name}: '{move}' undoes a success, but dependents may have started already. "
                "Use a state that is not a success until the result is final."
            )


def take_fingerprint(machine: Machine) -> str:
    """A hash of what a machine does, whatever its file looks like: machines with the same one behave the same."""
    lines = [
        machine.name,
        machine.kind.value,
        *sorted(f"{signal} falls back to {other}" for signal, other in machine.fallbacks.items()),
    ]
    lines += [repr(state) for state in machine.states]
    for move in machine.transitions:
        lines.append(f"{move} {move.signal} {move.automatic} {move.severity.value} {move.effects}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@once_for_each_machine
def allocates(machine: Machine) -> bool:
    """Whether a run of this machine starts only with workers of its own."""
    return any("allocate_workers" in move.effects for move in machine.transitions)


@once_for_each_machine
def waits_in_queue(machine: Machine) -> bool:
    """Whether its tasks wait for dependencies in a queued state, because only from there they can fail with them."""
    return any(
        move.signal == "dependency_failed" and machine.state(move.from_state).phase is Phase.QUEUED
        for move in machine.transitions
    )


def _try_restore(row: MachineRow) -> Machine | None:
    """None where its definition cannot be read: the audit finds that, and it must not keep the others from their work."""
    try:
        return restore(row)
    except (LifecycleError, StopIteration):
        return None


def restore(row: MachineRow) -> Machine:
    """The machine of a stored definition."""
    lifecycle = restore_lifecycle(row.lifecycle, row.definition)
    return next(machine for machine in lifecycle.machines if machine.kind is Kind(row.kind))
