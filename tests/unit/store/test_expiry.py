from pathlib import Path

import pytest
from sqlalchemy import create_engine

from commonage.store.expiry import expired
from commonage.store.upgrade import upgrade
from commonage.store.urls import sqlite_url

pytestmark = pytest.mark.anyio


async def test_a_batch_of_old_workloads_is_read_along_the_index_of_their_ends(tmp_path: Path) -> None:
    """Whatever the number of workloads: without this, each batch reads and sorts all of them."""
    path = tmp_path / "commonage.db"
    await upgrade(sqlite_url(path))
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        query = expired(1e9, ["needed"], 200, engine.dialect).compile(engine)
        bound = tuple(query.params.get(name, 0) for name in query.positiontup or ())
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", bound)]
    assert plan[0] == "SEARCH workloads USING INDEX ix_workloads_since_id (since<?)"
    assert not any("ORDER BY" in step for step in plan)
    engine.dispose()
