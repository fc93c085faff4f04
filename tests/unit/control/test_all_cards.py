"""Cards of machines with agents are shown, attributed and watched like those of this one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.control.world import ANN, Site, job

from commonage.domain.events import EventKind
from commonage.domain.fleet import Lease, NodeReport
from commonage.domain.requests import parse_gpus
from commonage.domain.sightings import ProcessOwner
from commonage.ports.agents import Heard
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing import factories

pytestmark = pytest.mark.anyio

UUID = "GPU-far-0"


class Elsewhere:
    """One machine with one card: what its agent said, and what it was told."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.told: list[Sequence[Lease]] = []
        self.warnings: list[tuple[str, str]] = []
        self.resumed: list[str] = []
        self.connected = True
        self.owner: str | None = None

    def heard(self) -> Sequence[Heard]:
        process = ProcessMemory(77, 3000)
        sample = DeviceSample(UUID, 4000, 0.5, processes=(process,))
        owner = ProcessOwner(77, self.owner, "python3", 1e12)  # its clock is another
        report = NodeReport("far", 8000, 32000)
        now = self.site.clock.now()
        return [Heard("far", report, now, now, self.connected, samples=(sample,), owners=(owner,))]

    async def note_held(self, leases: Sequence[Lease]) -> None:
        self.told.append(leases)

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        taken, self.warnings = self.warnings, []
        return taken

    async def resume(self, uuid: str) -> None:
        self.resumed.append(uuid)


def far_site() -> tuple[Site, Elsewhere]:
    site = Site([factories.node("far", [factories.device(uuid=UUID)])])
    site.samples_itself = False
    site.elsewhere = Elsewhere(site)
    return site, site.elsewhere


async def test_what_its_agent_measures_is_shown_and_written_down() -> None:
    site, far = far_site()
    async with site.open() as control:
        mine = (await control.work.submit(ANN, job(gpu=parse_gpus("4GiB")))).workloads[0]
        await site.sampled(control, 5)
        far.owner = f"{mine.id}-1"
        await site.sampled(control, 10)
        [view] = control.fleet.nodes()
        assert view.devices[0].used_mib == 4000
        assert view.devices[0].utilisation == 0.5
        assert view.devices[0].unattributed == ()
        assert control.sampling.vram == {f"{mine.id}-1": 3000}
        assert [lease.attempt_id for lease in far.told[-1]] == [f"{mine.id}-1"]


async def test_processes_of_nobody_there_are_told() -> None:
    site, _ = far_site()
    async with site.open() as control:
        await site.sampled(control, 15)
        [view] = control.fleet.nodes()
        [stray] = view.devices[0].unattributed
        assert (stray.pid, stray.memory_mib, stray.name) == (77, 3000, "python3")


async def test_what_is_old_is_no_measurement() -> None:
    site, far = far_site()
    far.connected = False
    async with site.open() as control:
        await site.sampled(control, 5)
        [view] = control.fleet.nodes()
        assert view.devices[0].used_mib is None


async def test_its_warnings_reach_the_owner_and_a_sound_card_is_said_to_be_so() -> None:
    site, far = far_site()
    async with site.open() as control:
        mine = (await control.work.submit(ANN, job())).workloads[0]
        await site.sampled(control, 5)
        far.warnings = [(f"{mine.id}-1", "its MPS daemon ended")]
        await site.sampled(control, 5)
        told = [one.message for one in site.store.shelf.events if one.kind is EventKind.WARNING]
        assert "its MPS daemon ended" in told
        await control.fleet.forget_faults(UUID)
        assert far.resumed == [UUID]
