"""Images that the registry must keep: those of the catalogue, and removed ones that live workloads use."""

import pytest
from tests.unit.control.catalogue.test_images import ADA, REGISTRY, image, lab
from tests.unit.control.world import FOREVER, job

from commonage.api.routes.registry import images_in_use
from commonage.domain.images import Kernel
from commonage.domain.workloads import Dependency
from commonage.testing import factories as make

pytestmark = pytest.mark.anyio
KERNELS = (Kernel("old", "Old", "/opt/old"), Kernel("new", "New", "/opt/new"))


async def test_removed_image_is_kept_while_workloads_use_it() -> None:
    site = lab()
    site.engine.behave(FOREVER, command=("true",))
    async with site.open() as control:
        for name, digit in (("lab/idle", "1"), ("lab/runs", "2"), ("lab/waits", "3"), ("lab/many", "4")):
            kernels = KERNELS if name == "lab/many" else ()
            await control.images.add(ADA, image(name, digit, kernels=kernels), REGISTRY)
        (runs,) = (await control.workloads.submit(ADA, job(environment="lab/runs"))).workloads
        await control.workloads.submit(ADA, job(environment="lab/many/new"))
        await control.workloads.submit(ADA, job(environment="lab/waits", depends_on=(Dependency(runs.id),)))
        await site.clock.advance(5)
        for name in ("lab/runs", "lab/waits", "lab/many"):
            await control.images.remove(ADA, name)
        kept = images_in_use(control)
        assert {one.rpartition("/")[2].partition("@")[0] for one in kept} == {"idle", "runs", "waits", "many"}
        await control.images.remove(ADA, "lab/idle")
        assert images_in_use(control) == {one for one in kept if "/idle@" not in one}
        for workload in list(control.live_state):
            await control.workloads.stop(ADA, workload.id)
        await site.clock.advance(60)
        assert not images_in_use(control)


async def test_replacement_and_image_hidden_by_settings_are_kept() -> None:
    site = lab()
    async with site.open() as control:
        hidden = make.image("base", "lab", reference=f"{REGISTRY}/lab/base@sha256:{'9' * 64}")
        control.catalogue.put([hidden])
        assert "base" in control.catalogue and control.catalogue["base"].image != hidden.reference
        old, new = image("lab/torch", "1"), image("lab/torch", "2")
        await control.images.add(ADA, old, REGISTRY)
        await control.images.add(ADA, new, REGISTRY)
        assert images_in_use(control) == {new.reference, hidden.reference}
