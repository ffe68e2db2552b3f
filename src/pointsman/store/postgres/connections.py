"""Ways into a PostgreSQL database: the URL, the session, and what goes wrong on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import conninfo

from pointsman.errors import LawBroken, StoreBusy, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from pointsman.store.postgres.values import adapt

LOCK_TIMEOUT_SECONDS = 5
CONNECT_TIMEOUT_SECONDS = 5
OLDEST_SERVER = 160000

# Plans are kept for as long as a connection lives, and the first are made while tables are small. What the writer and its
# triggers ask for is always a handful of rows by an index, so it is told never to read or hash a whole table, however small
# it was that day. And never to plan anew for the values of the day: a short list looks cheaper than the usual one, every time.
WRITER_SESSION = f"""
    SET TIME ZONE 'UTC';
    SET synchronous_commit = on;
    SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s';
    SET idle_in_transaction_session_timeout = '60s';
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

# Refused for a reason that waiting does not mend.
_UNUSABLE = re.compile(
    "authentication failed|no password supplied|no pg_hba.conf entry|permission denied|does not exist|"
    "invalid|unrecognized|Servname not supported"
)
_HOLDS_PASSWORD = {"password", "sslpassword"}


def connect(url: str, session: str) -> psycopg.Connection[Any]:
    """A connection that commits only when it is told to, and never prepares a statement that it runs once."""
    settings: dict[str, Any] = {
        "application_name": "pointsman",
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
    settings |= conninfo.conninfo_to_dict(url)
    connection = psycopg.connect(**settings, autocommit=True, prepare_threshold=1)
    try:
        connection.prepared_max = 300
        adapt(connection)
        connection.execute(session.encode())
    except BaseException:
        connection.close()
        raise
    return connection


def show(url: str) -> str:
    """The URL for people to read: without any password."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise StoreUnusable(
            "That is not the URL of a PostgreSQL database. Write it as postgresql://user:password@host:5432/database, "
            "with characters such as @ / ? # in a password percent-encoded."
        ) from None
    parts = urlsplit(url)
    if not parts.scheme:  # key=value words instead of a URL
        words = conninfo.conninfo_to_dict(url)
        return conninfo.make_conninfo("", **{name: value for name, value in words.items() if name not in _HOLDS_PASSWORD})
    before, at, place = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in _HOLDS_PASSWORD]
    return urlunsplit(
        (parts.scheme, before.partition(":")[0] + at + place, parts.path, urlencode(query, quote_via=quote, safe="/"), "")
    )


def explain(error: psycopg.Error, url: str) -> StoreError:
    """An error of PostgreSQL in the words of the contract; `url` is what people may see."""
    said = _said(error)
    match error:
        case psycopg.errors.DeadlockDetected() | psycopg.errors.SerializationFailure() | psycopg.errors.LockNotAvailable():
            return StoreBusy(f"Another transaction holds what this one needs in {url} ({said}). Try again.")
        case psycopg.errors.QueryCanceled():
            return StoreBusy(f"{url} took too long, and the statement was canceled ({said}). Try again.")
        case psycopg.errors.DiskFull():
            return StoreFull(
                f"There is no room to write {url} ({said}). "
                "Free some space: nothing was lost, and work goes on when there is room."
            )
        case psycopg.errors.RaiseException() | psycopg.IntegrityError() | psycopg.DataError():
            return LawBroken(f"The database refused the change: {said}")
        case psycopg.errors.ReadOnlySqlTransaction():
            return StoreUnavailable(
                f"{url} is read-only ({said}). Name the primary server, or add target_session_attrs=read-write to the URL."
            )
        case psycopg.errors.InsufficientPrivilege() | psycopg.errors.InvalidSchemaName():
            return StoreUnusable(
                f"{url} may not be used as it is ({said}). Let the user own the schema that its search_path names first."
            )
        case psycopg.OperationalError() if error.sqlstate is None and _UNUSABLE.search(said):
            return StoreUnusable(
                f"{url} cannot be opened: {said}. Check the user, the password and the name of the database in the URL."
            )
        case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.errors.IdleInTransactionSessionTimeout():
            return StoreUnavailable(
                f"{url} does not answer ({said}). Check that the server runs and can be reached; work goes on when it does."
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
    """What the server said, on one line; the constraint is named by whoever breaks it."""
    message = error.diag.message_primary or str(error)
    if error.diag.message_detail and isinstance(error, psycopg.IntegrityError):
        message = f"{message}: {error.diag.message_detail}"
    return " ".join(message.split()).rstrip(".")
