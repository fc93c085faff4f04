"""A node with NVIDIA GPUs joins: missing packages are shown first and come from a mirror, and its containers have GPUs.

The GPUs, their driver and the toolkit are stand-ins; what installs them, Docker, Swarm and the agent are real.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.harness.newcomer import MIRROR, switched_on
from tests.contract.harness.swarm import swarm_of
from tests.contract.harness.worker import Worker, base
from tests.fakes.gpus.harness import LOOK, MEMORY_MIB, A, B
from tests.fakes.gpus.packages import make_mirror
from tests.fakes.vgpu.harness import build_interposer
from tests.fakes.waiting import wait_until
from tests.integration.joining_site import Site, new_folders, site_of

from commonage.domain.nodes import Isolation
from commonage.files import preload

pytestmark = [
    pytest.mark.needs("docker", "debootstrap", "gcc"),
    pytest.mark.timeout(600),
    pytest.mark.made_ahead("worker base"),
]
_BUS = """
mount -t tmpfs tmpfs /sys/bus
for device in 0000:01:00.0 0000:02:00.0; do
  mkdir -p /sys/bus/pci/devices/$device
  echo 0x10de >/sys/bus/pci/devices/$device/vendor
  echo 0x030200 >/sys/bus/pci/devices/$device/class
done
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with new_folders() as (folder, shared), swarm_of(0) as swarm:
        make_mirror(shared / "mirror", os.uname().release, sorted(base().glob(f"root{MIRROR}/openssl*.deb")))
        build_interposer(shared)
        variables = {"COMMONAGE_PREPULL": "false", "COMMONAGE_GPU_PRELOAD": preload.LIBRARY_INSIDE}
        steps = ("--mirror", f"file:{shared}/mirror", "--disk", "1")
        with site_of(swarm, folder, shared, steps=steps, variables=variables) as site:
            yield site


@pytest.fixture(scope="module")
def worker(site: Site) -> Iterator[Worker]:
    """A node with two GPUs, without any NVIDIA software."""
    with switched_on(Worker(site.swarm, "gpu1", 21, site.shared)) as worker:
        assert worker.ssh(_BUS).returncode == 0
        # An admin installs it, where the site's settings say.
        put = f"install -D {site.shared}/{preload.LIBRARY} {preload.LIBRARY_INSIDE}"
        assert worker.ssh(put).returncode == 0
        yield worker


def test_nothing_of_nvidias_is_installed_that_nobody_asked_for(site: Site, worker: Worker) -> None:
    planned = site.join(worker, "--plan")
    headers = f"linux-headers-{os.uname().release}"
    for words in (
        "2 NVIDIA GPUs without a driver and a container toolkit",
        f"`--nvidia install` installs {headers}, nvidia-driver, nvidia-smi, libcuda1, nvidia-container-toolkit",
        f"from file:{site.shared}/mirror",
    ):
        assert words in planned
    refused = site.command(*site.joining(worker))
    assert refused.returncode != 0
    assert "Not joined: step nvidia failed" in refused.stdout
    assert not worker.ssh("dpkg-query -W | grep -i nvidia").stdout
    would = site.join(worker, "--plan", "--nvidia", "install")
    assert "load the driver" in would


def test_driver_and_toolkit_come_from_the_mirror_and_docker_runs_with_them(site: Site, worker: Worker) -> None:
    sources = worker.ssh("sha256sum /etc/apt/sources.list; ls /etc/apt/sources.list.d").stdout
    said = site.join(worker, "--nvidia", "install")
    assert "gpu1 has joined Test site" in said
    assert "nvidia       changed  2 NVIDIA GPUs, driver 570.10, container toolkit" in said
    assert worker.ssh("sha256sum /etc/apt/sources.list; ls /etc/apt/sources.list.d").stdout == sources
    settings = json.loads(worker.ssh("cat /etc/docker/daemon.json").stdout)
    assert settings["runtimes"] == {"nvidia": {"path": "nvidia-container-runtime", "args": []}}
    assert settings["default-runtime"] == "nvidia"
    assert settings["exec-opts"] == ["native.cgroupdriver=cgroupfs"]
    assert settings["node-generic-resources"] == [f"VRAM={2 * MEMORY_MIB}"]
    told = worker.ssh("docker info --format '{{.DefaultRuntime}} {{.CgroupDriver}}'").stdout.split()
    assert told == ["nvidia", "cgroupfs"], "Docker runs with what stands there"
    again = site.join(worker, "--nvidia", "install")
    assert "Nothing to do: gpu1 has joined Test site already" in again
    assert "Nothing to do" in site.join(worker), "with a driver nothing is asked, either"


def test_its_devices_are_known_and_each_container_sees_its_own(site: Site, worker: Worker) -> None:
    wait_until(lambda: site.is_ready("gpu1"))
    node = site.node("gpu1")
    assert node is not None
    assert [(one.uuid, one.simulated) for one in node.devices] == [(A, False), (B, False)]
    site.load_image(worker)
    greedy = {"NVIDIA_VISIBLE_DEVICES": "all"}
    first, second, without = (look(site, gpus=gpus, variables=greedy) for gpus in ("20GiB", "20GiB", None))
    devices = {"nvidia0": A, "nvidia1": B}
    for found in (first, second):
        (device,) = found["devices"].keys() - {"nvidiactl"}
        assert (
            found["variables"]["NVIDIA_VISIBLE_DEVICES"]
            == found["variables"]["CUDA_VISIBLE_DEVICES"]
            == devices[device]
        )
        assert set(found["devices"].values()) == {"opens"}
        assert found["libraries"] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert without["devices"] == {}


def test_programs_of_its_containers_load_the_interposer_of_the_site(site: Site) -> None:
    node = site.node("gpu1")
    assert node is not None
    assert [one.isolation for one in node.devices] == [Isolation.PRELOAD] * 2
    found = "cat /etc/ld.so.preload; grep -o -m1 '/.*libvgpu.so' /proc/self/maps; echo $CUDA_DEVICE_MEMORY_LIMIT_0"
    assert site.said_of("gpu1", found, gpus="20GiB") == [preload.LIBRARY_INSIDE] * 2 + [f"{20 * 1024}m"]


def look(site: Site, **fields: Any) -> dict[str, Any]:
    said = site.said_of("gpu1", f"python3 -c {shlex.quote(LOOK)}", **fields)
    found: dict[str, Any] = json.loads(said[-1])
    return found
