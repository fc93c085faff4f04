"""Translates errors of drivers and of SQLAlchemy into Commonage's errors, with a sentence for the admin.

All code of this package that accesses a database does so inside `translated`. No error of SQLAlchemy leaves it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
)

from commonage.domain.errors import CommonageError, Conflict, InvalidInput, Unavailable

_DISK_FULL = ("database or disk is full", "diskfull", "no space left on device", "could not extend file")
_LOCKED = ("database is locked", "database table is locked", "deadlock", "could not serialize", "lock timeout")
_READ_ONLY = ("readonly database", "read-only", "unable to open database file", "permission denied")
_BROKEN = ("file is not a database", "malformed")
_DISK_FAILS = ("disk i/o error",)
_GROWS = (
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_SHMMAP",
    "SQLITE_IOERR_SHMOPEN",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_FSYNC",
)
"""Errors of SQLite when its files cannot grow: on a full disk, it is not always SQLITE_FULL."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise Unavailable, Conflict or InvalidInput instead of a driver's error; `where` names the database."""
    try:
        yield
    except CommonageError:
        raise
    except IntegrityError as error:
        raise _conflict(error) from error
    except (DataError, UnicodeEncodeError, OverflowError) as error:
        # sqlite3 raises the last two: for text that is not Unicode, and for a number of more than 64 bits.
        raise InvalidInput(f"the database cannot hold this: {_native(error)}") from error
    except (ProgrammingError, NotSupportedError) as error:
        raise _unavailable(error, where, "lacks tables that this program needs, run `commonage db upgrade`") from error
    except (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError) as error:
        # asyncpg does not wrap those of the network, and sqlite3.Error comes from the cursor of the driver.
        raise _unavailable(error, where, "does not answer") from error


def _native(error: BaseException) -> str:
    """The driver's own message, without SQLAlchemy's statement and parameters (they may hold secrets)."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    words = str(original).strip() or type(original).__name__
    return words.splitlines()[0].rpartition("'>: ")[2]


def _conflict(error: IntegrityError) -> Conflict:
    native = _native(error)
    if "uq_workloads_owner_key" in native or "workloads.key" in native:
        return Conflict("this client key was used before by the same owner", code="key-taken")
    return Conflict(f"a constraint of the database does not allow this: {native}")


def _unavailable(error: BaseException, where: str, otherwise: str) -> Unavailable:
    native = _native(error)
    words = native.lower()

    def contains(phrases: tuple[str, ...]) -> bool:
        return any(phrase in words for phrase in phrases)

    if contains(_DISK_FULL) or _cannot_grow(error):
        return Unavailable(
            f"the disk under the database {where} is full: nothing new can be stored until there is room again"
        )
    if contains(_LOCKED):
        return Unavailable(f"the database {where} is locked by another program: {native}")
    if contains(_READ_ONLY):
        return Unavailable(f"the database {where} cannot be written by this user: {native}", retryable=False)
    if contains(_BROKEN):
        return Unavailable(f"the database {where} is damaged: {native}; restore a backup", retryable=False)
    if contains(_DISK_FAILS):
        return Unavailable(
            f"the disk under the database {where} fails: {native}; if `dmesg` shows errors of the disk, replace it and "
            "restore a backup"
        )
    if isinstance(error, InterfaceError):
        otherwise = "closed the connection"
    return Unavailable(f"the database {where} {otherwise}: {native}")


def _cannot_grow(error: BaseException) -> bool:
    original = error.orig if isinstance(error, DBAPIError) else error
    return getattr(original, "sqlite_errorname", "") in _GROWS
