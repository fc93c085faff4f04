"""Clients of the API, for modules of tests with a fixture `api`; and a git server."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.integration.api_world import Api
from tests.integration.git_fixtures import course, git

__all__ = ["course", "git"]


@pytest.fixture
async def ann(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    async with api.client("ann") as client:
        yield client


@pytest.fixture
async def bob(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    async with api.client("bob") as client:
        yield client


@pytest.fixture
async def root(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    async with api.client("admin:root") as client:
        yield client
