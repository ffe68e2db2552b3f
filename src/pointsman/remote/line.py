"""The line to a server: calls by name, and the wake-ups that it tells of."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from pointsman.client.problems import MEDIA_TYPE, make_error, read_retry_after
from pointsman.client.problems import Refusal as ToldRefusal
from pointsman.client.transport import Reply, Transport
from pointsman.engine.calls import SPOKEN, VERSION_HEADER
from pointsman.engine.queries import Surroundings
from pointsman.engine.wakeups import Wakeups
from pointsman.errors import CallRefused, EngineClosed, PointsmanError, StoreError, StoreUnavailable, TransitionRefused
from pointsman.kernel.machine import Case, Refusal, Transition
from pointsman.store.contract import Wakeup
from pointsman.world import Sleep, World

CALLS = "/api/v1/engine/"
WAKEUPS = "/api/v1/wakeups"
NO_HEADERS: Mapping[str, str] = {}
WAIT_SECONDS = 25.0
PATIENCE_SECONDS = 10.0
"""How much later than promised an answer may come."""
PAUSE_SECONDS = 1.0
"""Between two tries, while the server does not answer."""
LONGEST_PAUSE_SECONDS = 10.0
"""How long to wait, at most, when the server says that the tenant asks too often."""
GROUPS: tuple[Mapping[str, Wakeup], ...] = ({"tasks": Wakeup.TASKS, "workers": Wakeup.WORKERS}, {"events": Wakeup.EVENTS})
"""What one request waits for: workers wait for the first ones all the time, and the last ones are frequent."""


log = logging.getLogger(__name__)


class Line(Surroundings):
    """A connection to a server, and what all engines that use it share."""

    def __init__(self, transport: Transport, world: World) -> None:
        super().__init__(transport.url, world, RemoteWakeups(transport, world.sleep))
        self.transport = transport
        self.tell: Callable[[str], None] | None = None
        """Says that the server does not answer, and that it does again; without it, that is an error."""
        self._is_away = False

    async def send(self, method: str, path: str, body: object = None, headers: Mapping[str, str] = NO_HEADERS) -> Reply:
        """Any request that may be sent twice; an answer that is no success is raised."""
        content = None if body is None else msgspec.json.encode(body)
        while True:
            try:
                reply = await asyncio.to_thread(
                    self.transport.request, method, path, body=content, headers=headers, repeatable=True
                )
                if reply.status >= 400:
                    raise explain(reply)
            except StoreUnavailable:
                if self.tell is None:
                    raise
                self._note_outage(is_away=True)
                await self.world.sleep(PAUSE_SECONDS)
            except CallRefused as refused:
                if (pause := find_pause(refused)) is None:
                    raise
                await self.world.sleep(pause)
            else:
                self._note_outage(is_away=False)
                return reply

    def _note_outage(self, *, is_away: bool) -> None:
        if self.tell and is_away != self._is_away:
            self.tell("The server does not answer. Waiting for it." if is_away else "The server answers again.")
        self._is_away = is_away

    async def call(
        self, method: str, arguments: Mapping[str, Any], answers: Any, headers: Mapping[str, str] = NO_HEADERS
    ) -> Any:
        """Call a method of the engine of the server. Every call may be sent twice: with a key, it has only one effect."""
        reply = await self.send("POST", f"{CALLS}{quote(method)}", arguments, {VERSION_HEADER: SPOKEN, **headers})
        return decoder_of(answers).decode(reply.body)


def find_pause(refused: PointsmanError) -> float | None:
    """How long to wait before a request is sent again that came too soon after others of the tenant; None to give up."""
    if not isinstance(refused, CallRefused) or refused.problem != "rate-limited":
        return None
    pause = read_retry_after(refused.headers) or PAUSE_SECONDS
    return pause if pause <= LONGEST_PAUSE_SECONDS else None


def explain(reply: Reply) -> PointsmanError:
    """The error that an answer stands for; a refusal as the kernel has it."""
    error = make_error(reply)
    if isinstance(error, TransitionRefused) and isinstance(told := error.refusal, ToldRefusal):
        moves = tuple(Transition(told.state, move.to_state, move.trigger, move.signal) for move in told.allowed)
        return TransitionRefused(Refusal(Case(told.case), told.machine, told.state, told.asked, moves, told.unmet))
    return error


def read_refusal(document: Mapping[str, Any]) -> PointsmanError:
    """The error that a problem document within an answer stands for."""
    return explain(Reply(int(document["status"]), {"content-type": MEDIA_TYPE}, msgspec.json.encode(document)))


@cache
def decoder_of(answers: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(answers)


class RemoteWakeups(Wakeups):
    """Listens to the server from the first moment on at which somebody waits here."""

    def __init__(self, transport: Transport, sleep: Sleep) -> None:
        self._poller = _WakeupPoller(transport)
        super().__init__(self._poller.listen, sleep)

    def expect(self, wakeup: Wakeup) -> asyncio.Future[None]:
        self._poller.want(wakeup)
        return super().expect(wakeup)

    def listen(self, wakeup: Wakeup, heard: Callable[[], None]) -> Callable[[], None]:
        self._poller.want(wakeup)
        return super().listen(wakeup, heard)


class _WakeupPoller:
    """Asks the server for wake-ups again and again, in a thread for each group of kinds."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._hear: Callable[[Wakeup], None] = lambda _: None
        self._wanted: set[int] = set()
        self._over = threading.Event()

    def listen(self, hear: Callable[[Wakeup], None]) -> Callable[[], None]:
        self._hear = hear
        return self._over.set

    def want(self, wakeup: Wakeup) -> None:
        for number, group in enumerate(GROUPS):
            if number not in self._wanted and any(wakeup & kind for kind in group.values()):
                self._wanted.add(number)
                threading.Thread(target=self._keep_asking, args=(group,), name="pointsman-wakeups", daemon=True).start()

    def _keep_asking(self, group: Mapping[str, Wakeup]) -> None:
        heard: dict[str, Any] = {}
        while not self._over.is_set():
            try:
                now = self._ask(heard)
            except EngineClosed:
                return
            except PointsmanError as error:
                pause = find_pause(error)
                if pause is None and not isinstance(error, StoreError):  # that the server is away, every call says
                    log.warning("cannot wait for news of the server: %s", error)
                heard = {}
                self._over.wait(pause or PAUSE_SECONDS)
                continue
            is_known = now["process"] == heard.get("process")
            told = (kind for name, kind in group.items() if not is_known or now[name] != heard[name])
            for kind in told:
                with suppress(RuntimeError):
                    self._hear(kind)
            heard = {"process": now["process"], **{name: now[name] for name in group}}

    def _ask(self, heard: Mapping[str, Any]) -> dict[str, Any]:
        path = f"{WAKEUPS}?{urlencode({**heard, 'wait_seconds': WAIT_SECONDS})}"
        reply = self._transport.request("GET", path, timeout_seconds=WAIT_SECONDS + PATIENCE_SECONDS)
        if reply.status >= 400:
            raise explain(reply)
        return msgspec.json.decode(reply.body, type=dict[str, Any])
