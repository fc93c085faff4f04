"""Contract tests for platform resources in a store. Part of `contract`."""

from __future__ import annotations

import pytest

from commonage.domain.errors import StaleVersion
from commonage.domain.resources import StoredResource
from commonage.ports.store import Batch, Store


def _tenant(version: int = 1, body: str | None = '{"weight":2.0}') -> StoredResource:
    return StoredResource("Tenant", "vision ü", version, body, "git:lab@main", "root", 12.5)


@pytest.mark.anyio
class StoreResourcesContract:
    """Each change of a resource follows the version before it; a deleted resource keeps its version."""

    async def test_a_resource_is_read_as_it_was_written(self, store: Store) -> None:
        await store.commit(Batch(resources=[_tenant()]))
        assert await store.resources() == [_tenant()]

    async def test_a_change_replaces_the_version_that_it_follows(self, store: Store) -> None:
        await store.commit(Batch(resources=[_tenant(), _tenant(2, "{}")]))
        await store.commit(Batch(resources=[_tenant(3, None)]))
        assert await store.resources() == [_tenant(3, None)]

    async def test_resources_are_ordered_by_kind_and_name(self, store: Store) -> None:
        keys = [("Volume", "a"), ("Site", "b"), ("Site", "a")]
        await store.commit(Batch(resources=[StoredResource(kind, name, 1, "{}") for kind, name in keys]))
        assert [one.key for one in await store.resources()] == sorted(keys)

    @pytest.mark.parametrize("version", [1, 3])
    async def test_a_change_of_another_version_is_refused_as_a_whole(self, store: Store, version: int) -> None:
        await store.commit(Batch(resources=[_tenant()]))
        other = StoredResource("Site", "north", 1, "{}")
        with pytest.raises(StaleVersion):
            await store.commit(Batch(resources=[other, _tenant(version, "{}")]))
        assert await store.resources() == [_tenant()]
