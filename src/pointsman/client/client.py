"""The client: the routes as methods, and what takes more than one request."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial
from typing import Literal, Self
from urllib.parse import urlencode

from pointsman.client.answers import RunAnswer
from pointsman.client.calls import Routes
from pointsman.client.session import RETRY_SECONDS, Session, given, segment
from pointsman.client.stream import DONE, Events, Stream, follow_log, is_behind_end, name_log, watch_run
from pointsman.client.transport import TIMEOUT_SECONDS, Reply, Transport

EventType = Literal["transition", "task_completed", "task_question"]
EntityKind = Literal["run", "task", "worker", "breaker"]


def late(run_id: str, timeout_seconds: float | None) -> TimeoutError:
    return TimeoutError(f"Run {run_id} has not ended within {timeout_seconds or 0:g} seconds, and goes on.")


class Client(Routes):
    """A server of Pointsman, for any number of threads.

        with Client("http://127.0.0.1:8642") as client:
            run = client.run_flow(flow=Path("flow.yaml").read_text())
            print(client.wait_for_run(run.id).outcome)

    Errors are those of `pointsman.errors`: what the engine of the server has raised. While the server cannot be reached, each
    request is sent again, with the same idempotency key.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        actor: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`key` is an API key; a server without keys takes `actor` instead, who acts.

        `timeout_seconds` is how long the server may be silent, `retry_seconds` how long to go on trying; 0 tries once.
        """
        open_transport = partial(Transport, url, key=key, actor=actor, timeout_seconds=timeout_seconds)
        self._session = Session(open_transport, retry_seconds=retry_seconds)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return self._session.url

    def close(self) -> None:
        """Close all connections. Requests and streams that wait for the server end with `EngineClosed`."""
        self._session.close()

    def wait_for_run(self, run_id: str, *, timeout_seconds: float | None = None) -> RunAnswer:
        """Wait until a run has ended, however it ends. It is not asked again and again: the server tells when it moves.

        timeout_seconds: After this time, `TimeoutError` is raised; the run goes on.
        """
        with self.watch_run(run_id) as states:
            timer = threading.Timer(timeout_seconds or 0, states.close)
            timer.daemon = True
            if timeout_seconds is not None:
                timer.start()
            try:
                for run in states:
                    if run.phase == DONE:
                        return run
            finally:
                timer.cancel()
        raise late(run_id, timeout_seconds)

    def watch_run(self, run_id: str) -> Stream[RunAnswer]:
        """A run as it is now, and again whenever it moves. It goes on behind the end of the run, which may be retried."""
        return Stream(self._session, lambda transport, patience: watch_run(self._session, transport, patience, run_id))

    def events(
        self,
        *,
        after: str | None = None,
        types: Collection[EventType] = (),
        kind: EntityKind | None = None,
        run_id: str | None = None,
        lifecycle: str | None = None,
        state: str | None = None,
    ) -> Events:
        """The events of the tenant as they happen, each once, also when the connection breaks or the server starts anew.

            with client.events(types=["task_question"]) as events:
                for event in events:
                    if isinstance(event, TaskQuestion):
                        print(event.question, events.cursor)

        after: The `cursor` of earlier events, or `next` of a page of `list_events`; "0" is the beginning. Without it, the
            events from now on.
        types: Only these types.
        kind: Only transitions of such entities.
        run_id: Only those of this run and its tasks.
        lifecycle: Only those of entities that follow this lifecycle.
        state: Only those into this state.
        """
        wanted = ",".join(types) or None
        query = given(after=after, type=wanted, kind=kind, run_id=run_id, lifecycle=lifecycle, state=state)
        return Events(self._session, query)

    def read_log(self, task_id: str, attempt: int, *, start: int = 0, end: int | None = None) -> bytes:
        """What the log of an attempt has now, or the part of it that a slice has: `start=-1000` is its end."""
        return self._read_part(name_log(task_id, attempt), start, end)

    def read_artifact(self, task_id: str, attempt: int, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        """An artifact of an attempt, or the part of it that a slice has. Of one with more than 64 MiB, read parts."""
        path = f"/api/v1/tasks/{segment(task_id)}/attempts/{segment(attempt)}/artifact?{urlencode({'name': name})}"
        return self._read_part(path, start, end)

    def _read_part(self, path: str, start: int, end: int | None) -> bytes:
        if end is not None and (start < 0 or end <= start):
            raise ValueError("The end of a part is behind its start, which is not counted from the end then.")
        last = "" if end is None or start < 0 else str(end - 1)
        headers = {"Range": f"bytes={start}-{last}" if start >= 0 else f"bytes={start}"}

        def ask() -> Reply:
            reply = self._session.transport.request("GET", path, headers=headers)
            return Reply(206, reply.headers, b"") if is_behind_end(reply) else reply

        return self._session.exchange(ask).body

    def follow_log(self, task_id: str, attempt: int) -> Stream[bytes]:
        """The log of an attempt from its beginning, as it is written, until the attempt has ended."""
        return Stream(
            self._session,
            lambda transport, patience: follow_log(self._session, transport, patience, task_id, attempt),
        )
