"""A site, and a control plane that runs on it."""

from collections.abc import AsyncIterator

import pytest
from tests.unit.control.world import Site

from commonage.control.control import Control


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
async def control(site: Site) -> AsyncIterator[Control]:
    async with site.open() as control:
        yield control
