"""GPUs as programs in a container see them. The daemon is real, the GPUs are not.

Inherited for each way in which GPUs reach containers; `site` is the fixture to give.
"""

from __future__ import annotations

import asyncio
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.contract.harness.dockerd import Dockerd, minimal_image, new_folder
from tests.fakes.gpus.harness import FILL, LOOK, MEMORY_MIB, A, B, Gpus, seen, share_of
from tests.fakes.vgpu.harness import build_one_of_another_processor, build_one_that_cannot_be_loaded

from commonage.domain.images import Environment
from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons.attempts import InterposerNotLoaded
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.gpu.isolation.devices import IsolatedDevices
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import EngineRig

GREEDY = "commonage-greedy:1"
"""An image that requests all GPUs and more, as NVIDIA's own images do."""
GREEDY_ENV = (
    "CUDA_VERSION=12.8",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_GDS=enabled",
    "NVIDIA_MIG_CONFIG_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=all",
)
WIDER = (("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_GDS", "enabled"), ("CUDA_VERSION", "12.8"))
"""Variables with which a user may try to get more GPUs."""
NONE: dict[str, str] = {}


@dataclass
class Site:
    """An engine under test whose node has both GPUs."""

    rig: EngineRig
    gpus: Gpus
    devices: IsolatedDevices

    @property
    def gpu(self) -> dict[str, Device]:
        return {one.uuid: one for one in self.devices.inventory()}

    def request(
        self, shares: Sequence[Share], variables: Sequence[tuple[str, str]] = (), **changes: object
    ) -> StartRequest:
        """A job that looks what is there, and tries to make itself the first GPU's device; as control makes it."""
        request = self.rig.start_request(Behaviour(), command=("python3", "-c", LOOK))
        told = {**self.devices.environment(shares), "OTHER": str(self.gpus.numbers["nvidia0"]), **dict(variables)}
        allocation = replace(request.allocation, shares=tuple(shares))
        return replace(request, allocation=allocation, variables=tuple(told.items()), **changes)  # type: ignore[arg-type]  # its fields

    async def look(self, *shares: Share, **changes: Any) -> dict[str, Any]:
        request = self.request(shares, **changes)
        end = await self.rig.ended(request)
        assert end.exit_code == 0, end.reason
        return seen(await self.rig.lines(request.attempt_id))


class GpusContract(ABC):
    pytestmark = pytest.mark.anyio
    names_gpus = True
    """Whether NVIDIA_VISIBLE_DEVICES says inside which GPUs there are; by CDI it is `void`."""

    @abstractmethod
    async def site(self) -> Site:
        pass

    def visible(self, *uuids: str) -> str:
        return ",".join(uuids) if self.names_gpus else "void"

    async def test_a_share_sees_its_gpu_and_no_other(self, site: Site) -> None:
        found = await site.look(share_of(site.gpu[B]))
        assert found["devices"] == {"nvidia1": "opens", "nvidiactl": "opens"}
        assert found["libraries"] == ["libcuda.so.1", "libnvidia-ml.so.1"], "what computes, and what measures"
        assert found["own"] == "Operation not permitted", "nor can it make itself the other's device"
        told = found["variables"]
        assert told["CUDA_VISIBLE_DEVICES"] == B
        assert told["NVIDIA_VISIBLE_DEVICES"] == self.visible(B)
        assert told["COMMONAGE_GPU_MEMORY_MIB"] == told["NVIDIA_GPU_MEMORY_LIMIT"] == "6144"
        assert "PYTORCH_CUDA_ALLOC_CONF" not in told, "PyTorch before 2.10 would refuse CUDA"

    async def test_frameworks_are_limited_to_a_part_beside_what_the_user_sets(self, site: Site) -> None:
        part = share_of(site.gpu[B])
        found = await site.look(part)
        assert (found["limits"], found["paths"]) == (True, "/run/commonage/python")
        found = await site.look(part, variables=[("PYTHONPATH", "/of/the/user")])
        assert (found["limits"], found["paths"]) == (True, "/run/commonage/python:/of/the/user")
        found = await site.look(share_of(site.gpu[B], site.gpu[B].memory_mib))
        assert (found["limits"], found["paths"]) == (False, None), "a whole GPU is not limited"

    async def test_without_a_share_there_is_no_gpu(self, site: Site) -> None:
        found = await site.look()
        assert (found["devices"], found["libraries"]) == (NONE, [])
        assert found["variables"]["CUDA_VISIBLE_DEVICES"] == ""

    async def test_two_shares_of_one_gpu_and_the_whole_node(self, site: Site) -> None:
        whole = [share_of(one, one.memory_mib) for one in site.gpu.values()]
        parts = [[share_of(site.gpu[A], part)] for part in (6144, 12288)]
        first, second, every = await asyncio.gather(*(site.look(*shares) for shares in (*parts, whole)))
        assert first["devices"] == second["devices"] == {"nvidia0": "opens", "nvidiactl": "opens"}
        assert second["variables"]["NVIDIA_GPU_MEMORY_LIMIT"] == "12288"
        assert every["devices"] == {"nvidia0": "opens", "nvidia1": "opens", "nvidiactl": "opens"}
        assert every["variables"]["CUDA_VISIBLE_DEVICES"] == f"{A},{B}"
        assert "NVIDIA_GPU_MEMORY_LIMIT" not in every["variables"], "whole GPUs have no limit"

    async def test_a_user_cannot_have_more_by_asking_for_it(self, site: Site) -> None:
        share = share_of(site.gpu[B])
        asked = [{"variables": WIDER}, {"secrets": WIDER}]
        within = await asyncio.gather(*(site.look(share, **way) for way in asked))
        assert [one["devices"] for one in within] == [{"nvidia1": "opens", "nvidiactl": "opens"}] * 2
        without = await asyncio.gather(*(site.look(**way) for way in asked))
        assert [one["devices"] for one in without] == [NONE] * 2

    async def test_an_image_that_asks_for_all_gpus_has_its_share(self, site: Site) -> None:
        greedy = Environment("greedy", "Asks for all", image=GREEDY)
        found, *without = await asyncio.gather(
            site.look(share_of(site.gpu[B]), environment=greedy),
            site.look(environment=greedy),
            site.look(environment=greedy, secrets=WIDER),
        )
        assert found["devices"] == {"nvidia1": "opens", "nvidiactl": "opens"}
        assert found["variables"]["NVIDIA_VISIBLE_DEVICES"] == self.visible(B)
        assert "NVIDIA_GDS" not in found["variables"]
        assert [one["devices"] for one in without] == [NONE] * 2

    async def test_a_client_of_mps_reaches_its_daemon(self, site: Site) -> None:
        found = await site.look(share_of(site.gpu[B], isolation=Isolation.MPS))
        assert "nvidia-cuda-mps-control.pid" in found["pipe"]
        assert found["variables"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=6144M"

    async def test_programs_with_an_interposer_stay_within_the_share_together(self, site: Site) -> None:
        share = share_of(site.gpu[B], isolation=Isolation.PRELOAD)
        request = site.request([share], [("CUDA_DISABLE_CONTROL", "true"), ("CUDA_DEVICE_MEMORY_LIMIT_0", "0")])
        end = await site.rig.ended(replace(request, command=("python3", "-c", FILL)))
        lines = await site.rig.lines(request.attempt_id)
        assert end.exit_code == 0, (end.reason, lines)
        found = seen(lines)
        assert (found["first"], found["second"]) == (4096, 2048), "of 6144 MiB"
        assert found["off"] == 16384, "a program can switch it off: it is soft"
        assert found["opens"] == ["Read-only file system"] * 2
        assert found["variables"] == {
            "CUDA_DEVICE_MEMORY_LIMIT_0": "6144m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/dev/shm/vgpu.cache",
            "CUDA_DEVICE_SM_LIMIT": "25",
            "CUDA_DISABLE_CONTROL": "false",
        }, "a user switches it off by no variable of the request"

    async def test_a_whole_gpu_has_no_interposer(self, site: Site) -> None:
        found = await site.look(share_of(site.gpu[B], MEMORY_MIB, Isolation.PRELOAD))
        assert not [name for name in found["variables"] if name.startswith(("CUDA_DEVICE_", "COMMONAGE_GPU_PRELOAD"))]

    @pytest.mark.parametrize("build", [build_one_that_cannot_be_loaded, build_one_of_another_processor])
    async def test_an_image_that_does_not_load_the_interposer_runs_nothing(
        self, site: Site, build: Callable[[Path], Path]
    ) -> None:
        with site.gpus.other_interposer(build):
            request = site.request([share_of(site.gpu[B], isolation=Isolation.PRELOAD)])
            end = await site.rig.ended(request)
        assert end.reason == InterposerNotLoaded(path="/usr/local/vgpu/libvgpu.so")
        assert end.exit_code not in (0, None), "it never passes"
        assert not await site.rig.lines(request.attempt_id)

    async def test_a_session_sees_its_gpu_too(self, site: Site) -> None:
        rig = site.rig
        command = ("python3", "-c", f"{LOOK}\nimport sys, time; sys.stdout.flush(); time.sleep(600)")
        request = site.request([share_of(site.gpu[A])], kind=Kind.SESSION, wants_port=True, command=command)
        await rig.started(request)

        async def has_looked() -> bool:
            return bool(await rig.lines(request.attempt_id))

        await rig.until(has_looked, "it has looked")
        assert seen(await rig.lines(request.attempt_id))["devices"] == {"nvidia0": "opens", "nvidiactl": "opens"}
        await (await rig.engine()).stop(request.attempt_id, 0)


def add_greedy(daemon: Dockerd) -> None:
    """The test image, as one that asks for everything."""
    changes = "".join(f"&changes={quote(f'ENV {one}')}" for one in GREEDY_ENV)
    repository, _, tag = GREEDY.partition(":")
    daemon.ask("POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}{changes}", content=minimal_image())


@contextmanager
def gpus_of_a_node() -> Iterator[Gpus]:
    """Both, with MPS, on this machine for a while."""
    gpus = Gpus(new_folder())
    gpus.have_mps()
    try:
        with pytest.MonkeyPatch.context() as here:
            here.setenv("PATH", gpus.on_path[1].removeprefix("PATH="))
            yield gpus
            gpus.close()
    finally:
        shutil.rmtree(gpus.folder)
