"""Lets a failing assertion of a contract suite show what it compared, as one in a test file does."""

from collections.abc import Iterator

import pytest
from tests.contract.harness.dockerd import Dockerd, dockerd_with_image

pytest.register_assert_rewrite(
    "commonage.testing.engine_contract",
    "commonage.testing.engine_rig",
    "commonage.testing.metrics_contract",
    "commonage.testing.store.contract",
    "commonage.testing.store.reading_contract",
)


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """One daemon with the test image for all files of a worker that need no other, and that leave nothing in it."""
    with dockerd_with_image() as daemon:
        yield daemon
