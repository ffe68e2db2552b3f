"""Connections to PostgreSQL: the URL, the settings of a session, and errors as errors of the contract."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.abc import PQGen

from pointsman.errors import LawBroken, StoreBusy, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from pointsman.store.postgres.values import adapt
from pointsman.store.urls import drop_password, is_secret

LOCK_TIMEOUT_SECONDS = 5
IDLE_TIMEOUT_SECONDS = 10
"""A third of the default lease. A process that is stopped within a transaction holds its locks no longer than this, and one
that has a worker with a shorter lease not even that long."""
CONNECT_TIMEOUT_SECONDS = 5
SILENCE_SECONDS = 3.0
"""After so long without an answer, a connection asks whether the server still works on one."""
LOOK_SECONDS = 0.1
"""How often psycopg looks around while it waits."""
OLDEST_SERVER = 160000
Answer = TypeVar("Answer")

# A connection keeps its plans, and makes the first ones while tables are small. The writer and its triggers always read a few
# rows by an index, so the planner must never read or hash a whole table, however small it is at first. And it must not plan
# again for each set of values: a short list always looks cheaper than the usual one.
WRITER_SESSION = f"""
    SET TIME ZONE 'UTC';
    SET synchronous_commit = on;
    SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s';
    SET jit = off;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET plan_cache_mode = force_generic_plan
"""
READER_SESSION = """
    SET TIME ZONE 'UTC';
    SET default_transaction_read_only = on;
    SET jit = off;
    SET plan_cache_mode = force_custom_plan
"""
LISTENER_SESSION = "LISTEN pointsman"
PROBE_SESSION = "SET default_transaction_read_only = on"
IS_WORKING = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %s AND coalesce(state, '') NOT LIKE 'idle%%')"

# Errors that waiting does not fix.
_UNUSABLE = re.compile(
    "authentication failed|no password supplied|no pg_hba.conf entry|permission denied|does not exist|"
    "invalid|unrecognized|Servname not supported"
)


class Connection(psycopg.Connection[Any]):
    """A connection that does not wait for ever when the network has lost the question or the answer.

    The kernel notices lost packets by itself, but not a proxy or a firewall that takes them and does not pass them on. So after
    a silence this asks over a second connection whether the server still works on the answer, which may take any time.
    """

    url = ""
    server_pid = 0
    """The process on the server; 0 while the session begins, when every answer comes at once."""

    def wait(self, gen: PQGen[Answer], *options: Any, **named: Any) -> Answer:
        try:
            return super().wait(self._watch(gen), *options, **named)
        except AnswerLost:
            self.close()
            raise

    def _watch(self, gen: PQGen[Answer]) -> Generator[Any, Any, Answer]:
        """The same generator, which psycopg resumes every LOOK_SECONDS while there is nothing to read."""
        silent, is_lost = 0, False
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    silent, is_lost = 0, False
                elif is_lost:
                    raise AnswerLost(f"no answer for {silent * LOOK_SECONDS:.0f} seconds, and the server is not working on one")
                else:
                    silent += 1
                    # What was sent before we asked has arrived by the next look.
                    is_lost = silent % round(SILENCE_SECONDS / LOOK_SECONDS) == 0 and not self._is_awaited()
                wanted = gen.send(ready)
        except StopIteration as done:
            answer: Answer = done.value
            return answer

    def _is_awaited(self) -> bool:
        """Whether the server works on a statement of this connection."""
        if not self.server_pid:
            return False
        try:
            with connect(self.url, PROBE_SESSION) as probe:
                probe.server_pid = 0  # it is not asked about in turn
                ((is_working,),) = probe.execute(IS_WORKING, [self.server_pid]).fetchall()
        except psycopg.OperationalError as error:
            if "FATAL" in str(error):
                return True  # it answers, but has no connection left for us
            raise AnswerLost(f"no answer for {SILENCE_SECONDS:g} seconds, and no new connection: {error}") from None
        return bool(is_working)


class AnswerLost(psycopg.OperationalError):
    """The answer to a statement will never arrive."""


def connect(url: str, session: str) -> Connection:
    """A connection without implicit transactions, which prepares a statement the second time that it runs."""
    settings: dict[str, Any] = {
        "application_name": "pointsman",
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "keepalives_idle": 5,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
    settings |= conninfo.conninfo_to_dict(url)
    connection = Connection.connect(**settings, autocommit=True, prepare_threshold=1)
    try:
        connection.prepared_max = 300
        adapt(connection)
        cursor = connection.execute(f"{session}; SELECT pg_backend_pid()".encode())
        while cursor.nextset():
            pass
        # With a connection pooler, libpq knows only a number that the pooler has made up.
        ((connection.server_pid,),) = cursor.fetchall()
        connection.url = url
    except BaseException:
        connection.close()
        raise
    return connection


def show(url: str) -> str:
    """The URL without any password; one in which it is unclear where the password ends is refused without repeating it."""
    try:
        words = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        words = None
    if words and "://" not in url:  # key=value words instead of a URL
        return conninfo.make_conninfo("", **{name: value for name, value in words.items() if not is_secret(name)})
    shown = drop_password(url) if words is not None else None
    if shown is None:
        raise StoreUnusable(
            "This is not a URL of a PostgreSQL database. Write postgresql://user:password@host:5432/database, "
            "percent-encode characters such as @ / ? # in the password, and add only parameters that libpq knows, after a ?."
        )
    return shown


def explain(error: psycopg.Error, url: str) -> StoreError:
    """An error of PostgreSQL as an error of the contract; `url` must not contain a password."""
    said = _said(error)
    match error:
        case psycopg.errors.DeadlockDetected() | psycopg.errors.SerializationFailure() | psycopg.errors.LockNotAvailable():
            return StoreBusy(f"Another transaction in {url} has locked rows that this one needs ({said}). Try again.")
        case psycopg.errors.QueryCanceled():
            return StoreBusy(f"A statement in {url} took too long and was canceled ({said}). Try again.")
        case psycopg.errors.DiskFull():
            return StoreFull(
                f"The disk is full: {url} cannot be written ({said}). "
                "Free some space. Nothing was lost, and work continues then."
            )
        case psycopg.errors.RaiseException() | psycopg.IntegrityError() | psycopg.DataError():
            return LawBroken(f"The database refused the change: {said}")
        case psycopg.errors.ReadOnlySqlTransaction():
            return StoreUnavailable(
                f"{url} is read-only ({said}). Use the primary server, or add target_session_attrs=read-write to the URL."
            )
        case psycopg.errors.InsufficientPrivilege() | psycopg.errors.InvalidSchemaName():
            return StoreUnusable(
                f"The user of {url} lacks a privilege ({said}). Open the database once as the owner of the "
                "first schema in its search_path; then the owner grants the rest: pointsman database roles"
            )
        case psycopg.OperationalError() if error.sqlstate is None and _UNUSABLE.search(said):
            return StoreUnusable(
                f"{url} cannot be opened: {said}. Check the user, the password and the name of the database in the URL."
            )
        case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.errors.IdleInTransactionSessionTimeout():
            return StoreUnavailable(
                f"{url} does not answer ({said}). Check that the server runs and can be reached. Work continues when it does."
            )
        case _:
            return StoreError(f"{url}: {said}")


@contextmanager
def explained(url: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise explain(error, url) from error


def _said(error: psycopg.Error) -> str:
    """The message of the server on one line, with the detail for a broken constraint."""
    message = error.diag.message_primary or str(error)
    if error.diag.message_detail and isinstance(error, psycopg.IntegrityError):
        message = f"{message}: {error.diag.message_detail}"
    return " ".join(message.split()).rstrip(".")
