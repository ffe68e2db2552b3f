"""The shipped lifecycles in parsed and verified form: parsing them takes a fifth of a second.

`make docs` writes the file. It is used only if its digest matches the lifecycle files; otherwise these are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from pointsman.kernel.machine import Guard, Kind, Lifecycle, Machine, Severity, State, TaskDefaults, Transition
from pointsman.kernel.vocabulary import Predicate, Vocabulary

PACKED = Path(__file__).with_name("shipped.json")


class _Move(Struct, omit_defaults=True):
    from_state: str
    to_state: str
    trigger: str
    signal: str | None = None
    guards: tuple[tuple[str, bool], ...] = ()
    """Names, and whether they are negated."""
    otherwise: bool = False
    automatic: bool = False
    severity: Severity = Severity.INFO
    effects: tuple[str, ...] = ()


class _Machine(Struct):
    name: str
    kind: Kind
    states: tuple[State, ...]
    transitions: tuple[_Move, ...]
    fallbacks: dict[str, str]


class _Lifecycle(Struct):
    name: str
    version: int
    title: str
    defaults: TaskDefaults
    machines: tuple[_Machine, ...]


class Pack(Struct):
    digest: str
    """The digest of its sources."""
    lifecycles: tuple[_Lifecycle, ...]


def digest_of(texts: Iterable[str], vocabulary: Vocabulary) -> str:
    """The digest of the files and of the vocabulary."""
    words = [*vocabulary.guards, *(f"{kind} {name}" for kind, signals in vocabulary.signals.items() for name in signals)]
    return hashlib.sha256("\0".join([*texts, *words]).encode()).hexdigest()


def write_pack(lifecycles: Iterable[Lifecycle], vocabulary: Vocabulary) -> str:
    """The text of the file."""
    known = tuple(lifecycles)
    packed = tuple(
        _Lifecycle(each.name, each.version, each.title, each.defaults, tuple(map(_pack_machine, each.machines)))
        for each in known
    )
    pack = Pack(digest_of([each.text for each in known], vocabulary), packed)
    return msgspec.json.format(msgspec.json.encode(pack), indent=1).decode() + "\n"


def read_pack(texts: Mapping[str, str], vocabulary: Vocabulary) -> dict[str, Lifecycle]:
    """The lifecycles of these files by name, without borrowed machines; empty if a file has changed."""
    try:
        pack = msgspec.json.decode(PACKED.read_bytes(), type=Pack)
    except (OSError, msgspec.MsgspecError):
        return {}
    if pack.digest != digest_of(texts.values(), vocabulary):
        return {}
    return {each.name: _unpack(each, texts[each.name], vocabulary.guards) for each in pack.lifecycles}


def _pack_machine(machine: Machine) -> _Machine:
    moves = tuple(
        _Move(
            move.from_state,
            move.to_state,
            move.trigger,
            move.signal,
            tuple((guard.name, guard.negated) for guard in move.guards),
            move.otherwise,
            move.automatic,
            move.severity,
            move.effects,
        )
        for move in machine.transitions
    )
    return _Machine(machine.name, machine.kind, machine.states, moves, dict(machine.fallbacks))


def _unpack(packed: _Lifecycle, text: str, guards: Mapping[str, Predicate]) -> Lifecycle:
    machines = tuple(
        Machine(
            name=each.name,
            lifecycle=packed.name,
            kind=each.kind,
            version=packed.version,
            states=each.states,
            transitions=tuple(_unpack_move(move, guards) for move in each.transitions),
            fallbacks=each.fallbacks,
        )
        for each in packed.machines
    )
    return Lifecycle(packed.name, packed.version, packed.title, machines, defaults=packed.defaults, text=text)


def _unpack_move(move: _Move, guards: Mapping[str, Predicate]) -> Transition:
    return Transition(
        from_state=move.from_state,
        to_state=move.to_state,
        trigger=move.trigger,
        signal=move.signal,
        guards=tuple(Guard.on(name, guards[name], negated=negated) for name, negated in move.guards),
        otherwise=move.otherwise,
        automatic=move.automatic,
        severity=move.severity,
        effects=move.effects,
    )
