"""One connection to PostgreSQL: prepared statements, several of them in one round trip, and one place for all that goes wrong.

    later(write)  later(write)  ask(query)         later(write)  settle()
         └─────────────┴─────────────┴─▶ one round trip    └──────────┴─▶ one round trip

psycopg makes the connection, names the errors and reads the values. libpq executes the statements.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import psycopg
from msgspec import Struct
from psycopg import abc, conninfo
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from pointsman.errors import Conflict, StoreError, Unforeseen
from pointsman.store.postgres.connections import PROBE_SESSION, explain, show
from pointsman.store.postgres.statements import EXPECTED, Statement
from pointsman.store.postgres.values import UsdLoader, reader_of

CONNECT_TIMEOUT_SECONDS = 5
CANCEL_TIMEOUT_SECONDS = 5.0
SILENCE_SECONDS = 3.0
"""After so long without an answer, a session asks whether the server still works on one."""
LOOK_SECONDS = 0.1
"""How long libpq may wait at once, so that a signal is heard and silence is noticed."""
MOST_PREPARED = 300
MOST_WAITING_BYTES = 1 << 18
"""More writes are not kept back: they would need memory, and keep the server idle."""
COMMIT = Statement("COMMIT")
IS_WORKING = Statement("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = :pid AND coalesce(state, '') NOT LIKE 'idle%')")


Question = tuple[Statement, Mapping[str, Any], type[Struct] | None]
"""A statement, its parameters, and the type of its rows; None for tuples."""


class AnswerLost(psycopg.OperationalError):
    """The answer to a statement will never arrive."""


class _Call(NamedTuple):
    statement: Statement
    values: list[bytes | None]
    row_type: type[Struct] | None = None
    ids: Sequence[str] | None = None
    """The rows that it has to change."""
    follows: bool = False
    """Whether it belongs to the one before. Its answer is ignored."""


def _follow(call: _Call) -> Iterable[_Call]:
    yield call
    if call.statement.then:
        yield _Call(call.statement.then, [], follows=True)


class Session:
    """A connection without implicit transactions, for one thread at a time. Its errors are those of the contract.

    It does not wait for ever when the network has lost the question or the answer. The kernel notices lost packets by itself,
    but not a proxy or a firewall that takes them and does not pass them on. So after a silence it asks over a second connection
    whether the server still works on the answer, which may take any time.
    """

    def __init__(self, url: str, settings: str) -> None:
        self._url = url
        self._shown = show(url)
        self._waiting: list[_Call] = []
        self._waiting_bytes = 0
        self._remembered: deque[tuple[Question, list[Any]]] = deque()
        self._right = 0
        """How many questions were foreseen rightly."""
        self._has_asked_all = False
        """Whether nothing else may be asked in this transaction."""
        self._loaders: dict[Statement, abc.Transformer | None] = {}
        """Of each statement that is prepared: what reads its rows, once there were any."""
        self._status: bytes | None = None
        """What the server said of the last statement."""
        self.server_pid = 0
        """The process on the server; 0 while the session begins, when every answer comes at once."""
        try:
            self._connection = _connect(url)
        except psycopg.Error as error:
            raise explain(error, self._shown) from error
        self._pgconn = self._connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        try:
            *_, pid = self.script(f"{settings}; SELECT pg_backend_pid()")
        except BaseException:
            self.close()
            raise
        # With a connection pooler, libpq knows only a number that the pooler has made up.
        self.server_pid = int(pid.get_value(0, 0) or 0)

    @property
    def is_closed(self) -> bool:
        return self._pgconn.status != ConnStatus.OK

    @property
    def is_idle(self) -> bool:
        """Whether no transaction has begun."""
        return self._pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def server_version(self) -> int:
        return self._pgconn.server_version

    @property
    def file(self) -> int:
        """What becomes readable when there are notifications."""
        return self._pgconn.socket

    def notifications(self) -> list[bytes]:
        """What was notified since the last call; does not wait."""
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            self.close()
            raise explain(error, self._shown) from error
        return [notification.extra for notification in iter(self._pgconn.notifies, None)]

    def close(self) -> None:
        self.discard()
        self._connection.close()

    def later(self, statement: Statement, values: Mapping[str, Any], ids: Sequence[str] | None = None) -> None:
        """Execute a statement whose rows nobody needs together with the next one that is waited for, or with `settle`.

        So its error comes from there. With `ids` it has to change so many rows; otherwise the error is a `Conflict`.
        """
        if not self._has_asked_all:
            self._ask_nothing_else()
        if ids is not None:
            statement, values = statement.counting(), {**values, EXPECTED: len(ids)}
        call = _Call(statement, self._encode(statement, values), ids=ids)
        self._waiting.append(call)
        self._waiting_bytes += sum(len(value) for value in call.values if value)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self.settle()

    def ask(self, statement: Statement, values: Mapping[str, Any], row_type: type[Struct] | None = None) -> list[Any]:
        """Execute a statement now; its rows, as tuples or as rows of that type."""
        if self._remembered or self._has_asked_all:
            return self._recall((statement, values, row_type))
        return self.ask_together([(statement, values, row_type)])[0]

    def ask_together(self, questions: Sequence[Question]) -> list[list[Any]]:
        """Execute several statements in one round trip; the rows of each. The error of the first that fails is raised."""
        self._ask_nothing_else()
        calls = [_Call(statement, self._encode(statement, values), row_type) for statement, values, row_type in questions]
        before = len(self._waiting)
        return self._execute(calls)[before:]

    def remember(self, answers: Iterable[tuple[Question, list[Any]]], *, are_all: bool = False) -> None:
        """These questions are answered already, and will be asked next, in this order. Anything else is `Unforeseen`.

        If they are all, nothing else can be asked after them, either. What is written goes along with the commit.
        """
        self._remembered.extend(answers)
        self._has_asked_all = are_all
        self._right = 0

    def _recall(self, asked: Question) -> list[Any]:
        if not self._remembered:
            raise Unforeseen(None)
        if self._remembered[0][0] != asked:
            raise Unforeseen(self._right)
        self._right += 1
        return self._remembered.popleft()[1]

    def _ask_nothing_else(self) -> None:
        if self._remembered or self._has_asked_all:
            raise Unforeseen(self._right if self._remembered else None)

    def settle(self) -> None:
        """Execute what waits."""
        if self._waiting:
            self._execute([])

    def commit(self) -> None:
        """Execute what waits, and commit. PostgreSQL reports no error for the commit of a transaction that has failed."""
        if self._remembered:
            raise Unforeseen(self._right)
        self._has_asked_all = False
        self.ask(COMMIT, {})
        if self._status != b"COMMIT":
            raise StoreError(f"{self._shown} rolled the transaction back, because one of its statements had failed.")

    def discard(self) -> None:
        """Forget what waits, and what was foreseen."""
        self._remembered.clear()
        self._has_asked_all = False
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def script(self, text: str) -> list[PGresult]:
        """Execute statements without parameters, after all that waits; their results."""
        self._ask_nothing_else()
        self.settle()

        def send() -> None:
            if self._pgconn.pipeline_status:
                self._pgconn.exit_pipeline_mode()
            self._pgconn.send_query(text.encode())

        results: list[PGresult] = []
        self._exchange(send, results, until=None)
        for result in results:
            self._check(result)
        return results

    def _encode(self, statement: Statement, values: Mapping[str, Any]) -> list[bytes | None]:
        try:
            return statement.encode(values)
        except psycopg.Error as error:
            raise explain(error, self._shown) from error

    def _execute(self, calls: Sequence[_Call]) -> list[list[Any]]:
        """What waits, and then these; the rows of all of them."""
        calls = [*self._waiting, *calls]
        self._stop_waiting()
        if len(self._loaders) > MOST_PREPARED and self._pgconn.transaction_status != TransactionStatus.INERROR:
            self.script("DEALLOCATE ALL")
            self._loaders.clear()
        steps: list[Statement | _Call] = []
        new = set()
        for call in chain.from_iterable(map(_follow, calls)):
            # Where it is first used, because it may refer to what comes before it.
            if call.statement not in self._loaders and call.statement not in new:
                new.add(call.statement)
                steps.append(call.statement)
            steps.append(call)

        def send() -> None:
            pgconn = self._pgconn
            if not pgconn.pipeline_status:
                pgconn.enter_pipeline_mode()
            for step in steps:
                if isinstance(step, Statement):
                    pgconn.send_prepare(step.name, step.text)
                else:
                    pgconn.send_query_prepared(step.statement.name, step.values, None, Format.BINARY)
            pgconn.pipeline_sync()

        results: list[PGresult] = []
        self._exchange(send, results, until=ExecStatus.PIPELINE_SYNC)
        if new:
            done = (step for step, result in zip(steps, results, strict=True) if result.status == ExecStatus.COMMAND_OK)
            self._loaders.update((step, None) for step in done if isinstance(step, Statement))
        answers = []
        for step, result in zip(steps, results, strict=True):
            if isinstance(step, Statement):
                self._check(result)
            else:
                self._check(result, step.ids)
                if not step.follows:
                    answers.append(self._read(step, result))
        self._status = results[-1].command_status
        return answers

    def _read(self, call: _Call, result: PGresult) -> list[Any]:
        if not call.statement.returns:
            return []
        loader = self._loaders[call.statement]
        if loader is None:
            self._loaders[call.statement] = loader = Transformer(self._connection)
            loader.set_pgresult(result)
        else:
            loader.set_pgresult(result, set_loaders=False)  # the columns of a statement have the same types every time
        make_row = reader_of(call.row_type, result.nfields) if call.row_type else tuple
        try:
            return loader.load_rows(0, result.ntuples, make_row)
        except psycopg.Error as error:
            raise explain(error, self._shown) from error
        finally:
            loader.set_pgresult(None, set_loaders=False)

    def _check(self, result: PGresult, ids: Sequence[str] | None = None) -> None:
        """Raise the error of a statement, after which the session can be used on."""
        if result.status == ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result)
            if ids is not None and isinstance(error, psycopg.errors.DivisionByZero):
                raise Conflict(f"Another process has changed some of these rows: {', '.join(ids)}.")
            raise explain(error, self._shown) from error

    def _exchange(self, send: Callable[[], None], results: list[PGresult], until: ExecStatus | None) -> None:
        """Send something, and receive its results, errors included. If that is not possible, the session is closed."""
        try:
            send()
            self._receive(results, until)
        except psycopg.Error as error:
            self.close()
            for result in results:
                self._check(result)  # the server may have said why
            raise explain(error, self._shown) from error
        except BaseException:
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
            self.close()
            raise

    def _receive(self, results: list[PGresult], until: ExecStatus | None) -> None:
        pgconn = self._pgconn
        self._flush()
        while True:
            # libpq itself would wait without letting other threads run.
            while pgconn.is_busy():
                self._await()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                if until is None:
                    return
                if self.is_closed:
                    raise psycopg.OperationalError("the connection is lost")
            elif result.status == until:
                return
            else:
                results.append(result)

    def _flush(self) -> None:
        """Pass on what libpq could not send at once, and read what the server says meanwhile."""
        if not self._pgconn.flush():
            return
        self._poll.modify(self._pgconn.socket, select.POLLIN | select.POLLOUT)
        while self._pgconn.flush():
            if self._await() & select.POLLIN:
                self._pgconn.consume_input()
        self._poll.modify(self._pgconn.socket, select.POLLIN)

    def _await(self) -> int:
        """Until the socket is ready, and for what."""
        looks, is_lost = 0, False
        while not (ready := self._poll.poll(LOOK_SECONDS * 1000)):
            if is_lost:
                raise AnswerLost(f"no answer for {looks * LOOK_SECONDS:.0f} seconds, and the server is not working on one")
            looks += 1
            # What was sent before we asked has arrived by the next look.
            is_lost = looks % round(SILENCE_SECONDS / LOOK_SECONDS) == 0 and not self._is_awaited()
        return ready[0][1]

    def _is_awaited(self) -> bool:
        """Whether the server works on a statement of this session."""
        if not self.server_pid:
            return False
        try:
            probe = Session(self._url, PROBE_SESSION)
            try:
                probe.server_pid = 0  # it is not asked about in turn
                ((is_working,),) = probe.ask(IS_WORKING, {"pid": self.server_pid})
            finally:
                probe.close()
        except StoreError as error:
            if "FATAL" in str(error.__cause__):
                return True  # it answers, but has no connection left for us
            raise AnswerLost(f"no answer for {SILENCE_SECONDS:g} seconds, and no new connection: {error.__cause__}") from None
        return bool(is_working)


def _connect(url: str) -> psycopg.Connection[Any]:
    settings: dict[str, Any] = {
        "application_name": "pointsman",
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "keepalives_idle": 5,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
    settings |= conninfo.conninfo_to_dict(url)
    settings["client_encoding"] = "utf8"  # whatever that of the database is
    connection = psycopg.Connection.connect(**settings, autocommit=True)
    connection.adapters.register_loader("numeric", UsdLoader)
    return connection
