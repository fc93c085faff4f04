"""The contract of the store, on every store there is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.databases import migrated_sqlite

from commonage.ports.store import Store
from commonage.store.sql_store import SqlStore
from commonage.testing.fakes.store import MemoryStore
from commonage.testing.store.contract import StoreContract

pytestmark = pytest.mark.anyio


class TestMemoryStore(StoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        store = MemoryStore()
        await store.open()
        yield store


class TestSqlite(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqlStore(migrated_sqlite(tmp_path / "commonage.db"))
        await store.open()
        yield store
        await store.close()


@pytest.mark.needs("postgresql")
class TestPostgres(StoreContract):
    @pytest.fixture
    async def store(self, migrated_postgres_url: str) -> AsyncIterator[Store]:
        store = SqlStore(migrated_postgres_url)
        await store.open()
        yield store
        await store.close()
