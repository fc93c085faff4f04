"""Database addresses: from the form that an admin writes to the form for drivers, and the form for messages.

Called by `database` and `upgrade`; `server` builds the default with `sqlite_url`.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from commonage.domain.errors import InvalidInput

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


def sqlite_url(path: Path) -> str:
    return URL.create("sqlite+aiosqlite", database=str(path.absolute())).render_as_string()


def database_url(text: str) -> URL:
    """The address with its driver. Raises InvalidInput(code="invalid-database-url") for an unsupported one."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise _invalid("is not the address of a database") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise _invalid(f"has the type {url.drivername}, which Commonage does not support")
    url = url.set(drivername=driver)
    if driver.startswith("sqlite"):
        if url.database in (None, "", ":memory:"):
            raise _invalid("names no file; a database in memory would lose acknowledged writes")
        return url
    # libpq's name for it; asyncpg takes the same values under another name.
    mode = url.query.get("sslmode")
    if mode is not None:
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url


def shown(url: URL) -> str:
    """The address without its password, for messages and logs; for a file its path."""
    if url.drivername.startswith("sqlite"):
        return str(url.database)
    return url.render_as_string(hide_password=True).replace("+asyncpg", "")


def _invalid(why: str) -> InvalidInput:
    # The address itself is not repeated: it may hold a password.
    return InvalidInput(
        f"COMMONAGE_DATABASE_URL {why}; write sqlite:////path/to/commonage.db or postgresql://user:password@host/name",
        field="database_url",
        code="invalid-database-url",
    )
