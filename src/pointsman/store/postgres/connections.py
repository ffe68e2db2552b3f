"""Connections to PostgreSQL: the URL, the settings of a session, and errors as errors of the contract."""

from __future__ import annotations

import re

import psycopg
from psycopg import conninfo

from pointsman.errors import LawBroken, StoreBusy, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from pointsman.store.urls import drop_password, is_secret

LOCK_TIMEOUT_SECONDS = 5
IDLE_TIMEOUT_SECONDS = 10
"""A third of the default lease. A process that is stopped within a transaction holds its locks no longer than this, and one
that has a worker with a shorter lease not even that long."""
OLDEST_SERVER = 160000

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
    SET join_collapse_limit = 4;
    SET random_page_cost = 1.1;
    SET plan_cache_mode = force_custom_plan
"""
"""The view `transition` joins nine tables in a good order. To try others would take longer than to read a page of it.

Most of what is read is in memory, so a look-up by an index is cheap. By default, the planner would rather read all tasks than
look up 5,000 of them."""
LISTENER_SESSION = "LISTEN pointsman; SET synchronous_commit = off"
"""What it announces is committed already."""
PROBE_SESSION = "SET default_transaction_read_only = on"

# Errors that waiting does not fix.
_UNUSABLE = re.compile(
    "authentication failed|no password supplied|no pg_hba.conf entry|permission denied|does not exist|"
    "invalid|unrecognized|Servname not supported"
)


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


def _said(error: psycopg.Error) -> str:
    """The message of the server on one line, with the detail for a broken constraint."""
    message = error.diag.message_primary or str(error)
    if error.diag.message_detail and isinstance(error, psycopg.IntegrityError):
        message = f"{message}: {error.diag.message_detail}"
    return " ".join(message.split()).rstrip(".")
