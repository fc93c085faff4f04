"""The contract of the metrics port, on every store of samples there is."""

import errno
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from commonage.domain.errors import Conflict, Unavailable
from commonage.metrics import sql_metrics
from commonage.metrics.sql_metrics import SqlMetrics
from commonage.ports.metrics import Metrics, Sample
from commonage.store.upgrade import check, upgrade
from commonage.store.urls import sqlite_url
from commonage.testing.fakes.metrics import MemoryMetrics
from commonage.testing.metrics_contract import START, MetricsContract, everything, samples

pytestmark = pytest.mark.anyio


class TestMemoryMetrics(MetricsContract):
    @pytest.fixture
    def metrics(self) -> Metrics:
        return MemoryMetrics()


class TestSqlite(MetricsContract):
    @pytest.fixture
    async def metrics(self, tmp_path: Path) -> AsyncIterator[Metrics]:
        metrics = SqlMetrics(sqlite_url(tmp_path / "commonage.db"))
        await metrics.open()
        yield metrics
        await metrics.close()


@pytest.mark.needs("postgresql")
class TestPostgres(MetricsContract):
    @pytest.fixture
    async def metrics(self, postgres_url: str) -> AsyncIterator[Metrics]:
        metrics = SqlMetrics(postgres_url)
        await metrics.open()
        yield metrics
        await metrics.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "commonage.db")
    return str(request.getfixturevalue("postgres_url"))


async def test_samples_survive_closing(url: str) -> None:
    for round_ in range(3):
        metrics = SqlMetrics(url)
        await metrics.open()
        await metrics.write(samples([round_], begin=START + round_))
        assert len(await everything(metrics)) == 1  # one bucket of ten years
        await metrics.close()


async def test_they_live_beside_the_store_and_leave_it_alone(url: str) -> None:
    metrics = SqlMetrics(url)
    await metrics.open()
    await upgrade(url)
    assert await check(url) == []
    await metrics.close()


async def test_samples_of_a_newer_program_are_left_alone(tmp_path: Path) -> None:
    metrics = SqlMetrics(sqlite_url(tmp_path / "commonage.db"))
    await metrics.open()
    await metrics.close()
    path = tmp_path / "commonage-samples.db"
    assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE samples_about SET version = 99")
    connection.close()
    with pytest.raises(Conflict, match="newer Commonage"):
        await metrics.open()


async def test_closed_or_broken_is_unavailable(tmp_path: Path) -> None:
    metrics = SqlMetrics(sqlite_url(tmp_path / "commonage.db"))
    with pytest.raises(Unavailable):
        await metrics.write(samples([1]))
    (tmp_path / "commonage-samples.db").write_text("no database" * 1000)
    with pytest.raises(Unavailable, match="not a database"):
        await metrics.open()
    with pytest.raises(Unavailable):
        await SqlMetrics("postgresql://ann:hush@127.0.0.1:1/x").open()


async def test_recreates_series_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(table: Table, connection: AsyncConnection) -> Any:
        if table is sql_metrics.raw:
            raise OSError(errno.ENOSPC, "no space left on device")
        return insert(table, connection)

    insert = sql_metrics._insert
    metrics = SqlMetrics(sqlite_url(tmp_path / "commonage.db"))
    await metrics.open()
    try:
        first, second = (Sample("power_w", f"device:/{number}", START, number) for number in (1.0, 2.0))
        monkeypatch.setattr(sql_metrics, "_insert", full)
        with pytest.raises(Unavailable, match="no space"):
            await metrics.write([first])
        monkeypatch.undo()
        await metrics.write([second])
        await metrics.write([first])
        for sample, value in ((first, 1.0), (second, 2.0)):
            found = await metrics.query(sample.metric, sample.subject, since=START - 1, until=START + 1)
            assert [point.mean for point in found] == [value]
    finally:
        await metrics.close()
