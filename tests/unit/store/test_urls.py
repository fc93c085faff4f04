from pathlib import Path

import pytest

from commonage.domain.errors import InvalidInput
from commonage.store.urls import database_url, shown, sqlite_url


@pytest.mark.parametrize(
    ("written", "driver"),
    [
        ("postgresql://ann:pw@db/commonage", "postgresql+asyncpg"),
        ("postgres://ann:pw@db/commonage", "postgresql+asyncpg"),
        ("postgresql+asyncpg://ann:pw@db/commonage", "postgresql+asyncpg"),
        ("sqlite:////data/commonage.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:////data/commonage.db", "sqlite+aiosqlite"),
    ],
)
def test_address_gets_our_driver(written: str, driver: str) -> None:
    assert database_url(written).drivername == driver


@pytest.mark.parametrize(
    "written",
    ["", "x", "mysql://ann:hush@db/commonage", "postgresql://ann:hush@db:port/x", "sqlite://", "sqlite:///:memory:"],
)
def test_other_addresses_are_refused_without_repeating_passwords(written: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        database_url(written)
    assert caught.value.problem_code == "invalid-database-url"
    assert "hush" not in caught.value.message


def test_sslmode_of_libpq_becomes_ssl_of_asyncpg() -> None:
    assert database_url("postgresql://db/x?sslmode=require").query == {"ssl": "require"}


def test_password_is_not_shown() -> None:
    assert shown(database_url("postgresql://ann:hush@db:5433/x")) == "postgresql://ann:***@db:5433/x"
    assert shown(database_url(sqlite_url(Path("/data/a b.db")))) == "/data/a b.db"
