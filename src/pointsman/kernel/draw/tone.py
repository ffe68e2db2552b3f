"""What colours stand for: the phase of a state, and for finished work how it ended."""

from __future__ import annotations

from enum import StrEnum

from pointsman.kernel.machine import State


class Tone(StrEnum):
    """The six meanings of a colour."""

    HELD = "held"
    QUEUED = "queued"
    ACTIVE = "active"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELED = "canceled"


def tone_of(state: State) -> Tone:
    """The outcome where there is one, otherwise the phase (`done` without an outcome counts as a success)."""
    if state.outcome is not None:
        return Tone(state.outcome)
    return Tone(state.phase) if state.phase != "done" else Tone.SUCCESS
