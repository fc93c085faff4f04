"""The schema of a database: migrates it to this program's schema, or reports the differences.

`server` calls `upgrade` at every start and offers both as `commonage db`; `sql_store` refuses a schema that is not
current. Alembic does the work with the scripts in `migrations`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import URL, Connection

from commonage.domain.errors import Conflict
from commonage.store.database import connect, prepare_file
from commonage.store.tables import metadata
from commonage.store.urls import database_url, shown

T = TypeVar("T")

_PATIENCE_S: Final = 120.0  # another program may be migrating right now
_ADVISORY_LOCK: Final = 0x636F6D6D6F6E616765 % 2**63  # "commonage": a number that other programs are unlikely to use
_VERSION_TABLE: Final = "schema_version"


async def upgrade(url: str) -> None:
    """Migrate the database to this program's schema; create it if needed. Concurrent calls are safe.

    Raises Conflict(code="database-newer") for one of a later program, Conflict(code="database-unsupported") for one
    whose schema is older than the initial migration, InvalidInput, Unavailable.
    """
    address = database_url(url)
    prepare_file(address)

    def migrate(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        _known_revision(connection, address)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    await _in_transaction(address, migrate)


async def check(url: str) -> list[str]:
    """The differences between the database and the declared schema, one sentence each; empty without differences.

    Raises as `upgrade` does, and changes nothing.
    """
    address = database_url(url)

    def compare(connection: Connection) -> list[str]:
        revision = _known_revision(connection, address)
        if revision != _head():
            return [_behind(revision)]
        options = {"compare_type": True, "version_table": _VERSION_TABLE, "include_object": _is_ours}
        context = MigrationContext.configure(connection, opts=options)
        return [_in_words(difference) for difference in compare_metadata(context, metadata)]

    return [_behind(None)] if _is_absent(address) else await _in_transaction(address, compare)


async def require_current(address: URL) -> None:
    """Raise Conflict unless the database has the schema of this program."""
    revision = None
    if not _is_absent(address):
        revision = await _in_transaction(address, lambda connection: _known_revision(connection, address))
    if revision != _head():
        raise Conflict(f"the database {shown(address)} is not ready: {_behind(revision)}", code="database-outdated")


def _is_absent(address: URL) -> bool:
    """True if the file does not exist; opening it would create it."""
    return address.drivername.startswith("sqlite") and not Path(str(address.database)).exists()


def _behind(revision: str | None) -> str:
    return f"it is at schema {revision or 'none'}, this program needs {_head()}: run `commonage db upgrade`"


async def _in_transaction(address: URL, work: Callable[[Connection], T]) -> T:
    database = connect(address, reconnect_timeout_s=_PATIENCE_S)
    try:
        return await database.write(work)
    finally:
        await database.close()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["version_table"] = _VERSION_TABLE
    return config


def _head() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


def _known_revision(connection: Connection, address: URL) -> str | None:
    """The database's revision, None for an empty one. Raises Conflict for one that this program cannot migrate."""
    context = MigrationContext.configure(connection, opts={"version_table": _VERSION_TABLE})
    revision = context.get_current_revision()
    scripts = ScriptDirectory.from_config(_config())
    if revision is None or revision in {script.revision for script in scripts.walk_revisions()}:
        return revision
    oldest = scripts.get_base() or ""
    if revision < oldest:
        raise _unsupported(address, revision, oldest)
    raise Conflict(
        f"the database {shown(address)} was written by a newer Commonage (schema {revision}, this program knows up "
        f"to {_head()}); start the newer one, or restore a backup made before it",
        code="database-newer",
    )


def _unsupported(address: URL, revision: str, oldest: str) -> Conflict:
    is_file = address.drivername.startswith("sqlite")
    remedy = "Move the file away" if is_file else "Set COMMONAGE_DATABASE_URL to an empty database"
    return Conflict(
        f"The database {shown(address)} has schema {revision}. The oldest schema that this version can upgrade is "
        f"{oldest}. {remedy} and start again: a new database is made. Homes and accounts stay; workloads and usage "
        "of the old database cannot be copied. To read them, start the version that wrote it.",
        code="database-unsupported",
    )


def _is_ours(thing: Any, name: str | None, kind: str, reflected: bool, _other: Any) -> bool:
    """Tables of other programs may be in the same database; the tables of the samples are managed by telemetry."""
    return kind != "table" or not reflected or name in metadata.tables


def _in_words(difference: Any) -> str:
    """One of Alembic's differences, which are tuples or lists of them, as a sentence."""
    if isinstance(difference, list):
        return "; ".join(_in_words(each) for each in difference)
    what, *about = difference
    names = [getattr(each, "name", None) or (each if isinstance(each, str) else "") for each in about]
    return f"{what.replace('_', ' ')}: {', '.join(str(name) for name in names if name)}"
