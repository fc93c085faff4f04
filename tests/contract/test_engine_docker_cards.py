"""Cards in containers of real Docker daemons: by device request, and by CDI with the next Debian's Docker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.cards_contract import CardsContract, Site, add_greedy, cards_of_a_machine
from tests.contract.docker26 import newer_docker
from tests.contract.dockerd import Dockerd
from tests.contract.test_engine_docker import docker_rig, dockerd_with_image
from tests.fakes.cards.harness import B, Cards, share_of

from commonage.gpus.isolation.devices import IsolatedDevices

pytestmark = [pytest.mark.needs("docker", "gcc"), pytest.mark.anyio]


@pytest.fixture(scope="module")
def cards() -> Iterator[Cards]:
    with cards_of_a_machine() as cards:
        yield cards


@pytest.fixture(scope="module")
def devices(cards: Cards) -> IsolatedDevices:
    return cards.devices(cards.folder / "gpus")


@pytest.fixture(scope="module")
def by_request(cards: Cards) -> Iterator[Dockerd]:
    """Debian's own Docker, which finds the toolkit's hook when it starts."""
    with dockerd_with_image(before=cards.on_path) as daemon:
        add_greedy(daemon)
        yield daemon


@pytest.fixture(scope="module")
def by_cdi(cards: Cards) -> Iterator[Dockerd]:
    """A newer one without the toolkit, told to read specifications."""
    settings = cards.folder / "daemon.json"
    settings.write_text('{"features": {"cdi": true}}')
    arguments = (f"--config-file={settings}", f"--cdi-spec-dir={cards.write_cdi()}")
    with dockerd_with_image(*arguments, before=newer_docker()) as daemon:
        add_greedy(daemon)
        yield daemon


@asynccontextmanager
async def site_of(folder: Path, dockerd: Dockerd, cards: Cards, devices: IsolatedDevices) -> AsyncIterator[Site]:
    async with docker_rig(folder, dockerd) as rig:
        rig.devices = devices
        await rig.engine()
        yield Site(rig, cards, devices)


class TestByRequest(CardsContract):
    @pytest.fixture
    async def site(
        self, tmp_path: Path, by_request: Dockerd, cards: Cards, devices: IsolatedDevices
    ) -> AsyncIterator[Site]:
        async with site_of(tmp_path, by_request, cards, devices) as site:
            yield site

    async def test_an_image_that_needs_a_newer_driver_is_told_so(self, site: Site) -> None:
        """What the toolkit says comes from far within, behind who called whom."""
        order = site.order([share_of(site.card[B])], variables=[("NVIDIA_REQUIRE_CUDA", "cuda>=99.1")])
        end = await site.rig.ended(order)
        assert end.exit_code not in (0, None), "it never passes"
        assert "needs a newer NVIDIA driver than its machine has" in end.detail
        assert "unsatisfied condition: cuda>=99.1" in end.detail


# What makes another machine's root file system of Debian's packages can fetch a package, too.
@pytest.mark.needs("debootstrap")
class TestByCdi(CardsContract):
    names_cards = False

    @pytest.fixture
    async def site(
        self, tmp_path: Path, by_cdi: Dockerd, cards: Cards, devices: IsolatedDevices
    ) -> AsyncIterator[Site]:
        async with site_of(tmp_path, by_cdi, cards, devices) as site:
            yield site

    async def test_a_card_that_cdi_calls_otherwise_is_told_how_to_name(
        self, site: Site, cards: Cards, by_cdi: Dockerd
    ) -> None:
        cards.write_cdi(by=["index"])
        try:
            end = await site.rig.ended(site.order([share_of(site.card[B])]))
        finally:
            cards.write_cdi()
        assert end.exit_code not in (0, None), "it never passes"
        assert "--device-name-strategy=uuid" in end.detail
