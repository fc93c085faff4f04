"""The page of images: what is in them, on which nodes, and who may remove them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fakes.portal import ADMIN, USER, Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import AWKWARD, assert_whole

from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.images import Image, Kernel, Provenance, SourceFile
from commonage.domain.principals import Principal
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import Kind
from commonage.testing import factories as make
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
ROOT = Principal("root", ADMIN)
ANN = Principal("ann", USER, ("lab",))
REGISTRY = "registry.test:5000"


@pytest.fixture
async def portal(clock: FakeClock) -> AsyncIterator[Portal]:
    async with Portal(clock, ControlSettings(rules=Rules((Tenant("lab"),)))).running() as running:
        running.identity.groups["ann"] = ("lab",)
        await clock.advance(6)
        yield running


async def add(portal: Portal, name: str = "lab/torch", who: Principal = ANN, **fields: Any) -> Image:
    return (await portal.control.images.add(who, make.image(name, None, **fields), REGISTRY)).image


async def test_the_page_says_what_is_in_them_and_made_from_what(portal: Portal, ann: Person) -> None:
    assert "No images. Build and push one" in (await ann.get("images")).text
    kernels = (Kernel("torch", "PyTorch", "/opt/k/torch"), Kernel("py310", "Python 3.10", "/opt/k/py310"))
    made = Provenance(
        at=1.5e9, builder="buildah 1.28", base="debian:bookworm", files=(SourceFile("needs.txt", "sha256:12"),),
        commit="c0ffee1", dirty=True,
    )  # fmt: skip
    await add(portal, title="Torch", kernels=kernels, provenance=made, min_vram_mib=4096)
    page = (await ann.get("images")).text
    assert_whole(page)
    for words in (
        "Torch", "4 GiB VRAM or more", "buildah 1.28", "debian:bookworm", "needs.txt", "476 MiB",
        "c0ffee1</code>, with uncommitted changes", "launch?kind=job&amp;environment=lab/torch/py310",
        "launch?kind=session&amp;environment=lab/torch",
    ):  # fmt: skip
        assert words in page
    form = (await ann.get("launch?kind=job&environment=lab/torch/py310")).text
    assert '<option value="lab/torch/py310" data-kinds="job service" selected>Torch: Python 3.10 · lab/torch' in form
    portal.identity.groups["ann"] = ()
    assert "lab/torch" not in (await ann.get("images")).text + (await ann.get("launch")).text


async def test_it_shows_how_far_each_node_is(portal: Portal, clock: FakeClock, ann: Person) -> None:
    portal.engine.prepare_s = 60
    await add(portal)
    await clock.advance(2)
    page = (await ann.get("images")).text
    assert page.count("Pulling") == 3
    assert '<progress class="meter" max="1" value="0.5"' in page
    assert '<progress class="meter" max="1" value="0.5"' in (await ann.get("nodes")).text
    await clock.advance(70)
    assert (await ann.get("images")).text.count("Ready") == 3
    portal.engine.prepare_s = 0
    portal.engine.broken_environments["lab/none"] = "no space left on device"
    await add(portal, "lab/none")
    await clock.advance(2)
    assert "no space left on device" in (await ann.get("images")).text


async def test_who_registered_it_removes_it_and_has_it_brought(portal: Portal, ann: Person, root: Person) -> None:
    await add(portal)
    await add(portal, "public/tools", ROOT)
    page = (await ann.get("images")).text
    assert "images/lab/torch/remove" in page
    assert "images/public/tools/remove" not in page
    assert "images/public/tools/remove" in (await root.get("images")).text
    assert (await ann.post("images/public/tools/remove")).status_code == 403
    assert (await ann.post("images/lab/torch/prepull")).status_code == 303
    ask = Submission(Kind.JOB, ("true",), environment="lab/torch")
    await portal.control.workloads.submit(ANN, ask)
    assert (await ann.post("images/lab/torch/remove")).status_code == 303
    assert portal.control.catalogue.image("lab/torch") is None
    assert (await ann.post("images/lab/torch/remove")).status_code == 404


async def test_awkward_words_do_no_harm(portal: Portal, ann: Person) -> None:
    kernels = (Kernel("python3", AWKWARD),)
    await add(portal, title=AWKWARD, description=AWKWARD, kernels=kernels, provenance=Provenance(at=1.0, base=AWKWARD))
    for path in ("images", "launch", "nodes"):
        page = (await ann.get(path)).text
        assert_whole(page)
        assert "<script>alert" not in page
