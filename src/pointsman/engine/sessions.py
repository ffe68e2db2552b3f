"""Names of sessions: an attempt that reports none gets one that is made up, so that it can ask questions all the same."""

from __future__ import annotations


def invent_session(task_id: str, epoch: int) -> str:
    return f"{task_id}.{epoch}"


def is_invented(session_id: str, task_id: str) -> bool:
    """Whether a session is only a name that was made up: no agent knows it."""
    return session_id.startswith(f"{task_id}.")
