"""A machine with NVIDIA cards joins: what it lacks is shown first, comes from a mirror, and its containers have cards.

The cards, their driver and the toolkit are stand-ins; what installs them, Docker, Swarm and the agent are real.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.acceptance.served import free_port, served
from tests.contract.dockerd import IMAGE, minimal_image, new_folder
from tests.contract.swarm import MANAGER, doorway, swarm_of
from tests.contract.worker import MIRROR, Worker, base, worker_of
from tests.fakes.cards.harness import LOOK, MEMORY_MIB, A, B
from tests.fakes.cards.packages import make_mirror
from tests.integration.test_joining import Site, load_image, wait_for

from commonage.sdk import Client
from commonage.wire.workloads import SubmitIn

pytestmark = [pytest.mark.needs("docker", "debootstrap", "gcc"), pytest.mark.timeout(600)]
_BUS = """
mount -t tmpfs tmpfs /sys/bus
for card in 0000:01:00.0 0000:02:00.0; do
  mkdir -p /sys/bus/pci/devices/$card
  echo 0x10de >/sys/bus/pci/devices/$card/vendor
  echo 0x030200 >/sys/bus/pci/devices/$card/class
done
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    folder, shared, port = new_folder(), new_folder(), free_port()
    with ExitStack() as closing:
        for one in (folder, shared):
            closing.callback(shutil.rmtree, one, ignore_errors=True)
        swarm = closing.enter_context(swarm_of(0))
        manager = swarm.manager
        (shared / "image.tar").write_bytes(minimal_image())
        make_mirror(shared / "mirror", os.uname().release, sorted(base().glob(f"{MIRROR[1:]}/openssl*.deb")))
        variables = {
            "COMMONAGE_NAME": "Test site",
            "COMMONAGE_BIND": "0.0.0.0",
            "COMMONAGE_DOCKER_URL": manager.daemon.url,
            "COMMONAGE_DOCKER_IMAGE": IMAGE,
            "COMMONAGE_PREPULL": "false",
            "COMMONAGE_SHARED_DIR": str(shared),
            "COMMONAGE_SITE_ADDRESS": manager.address,
        }
        closing.enter_context(doorway(manager.space, port))
        server = closing.enter_context(
            served(folder, "--engine", "swarm", before=manager.inside(), variables=variables, port=port)
        )
        token = server.token("admin", "--admin")
        admin = closing.enter_context(Client(server.url, token))
        wait_for(lambda: MANAGER in {one.name for one in admin.nodes()})
        admin.drain("local", MANAGER)
        yield Site(swarm, server, admin, shared, token)


@pytest.fixture(scope="module")
def worker(site: Site) -> Iterator[Worker]:
    """A machine with two cards, and nothing of NVIDIA's on its disk."""
    with worker_of(site.swarm, "gpu1", 21, site.shared) as worker:
        assert worker.ssh(_BUS).returncode == 0
        yield worker


def joining(site: Site, worker: Worker, *more: str) -> tuple[str, ...]:
    where = ("--mirror", f"file:{site.shared}/mirror", "--disk", "1")
    return ("node", "join", f"admin@{worker.address}", *site.access(worker), *where, *more)


def test_nothing_of_nvidias_is_installed_that_nobody_asked_for(site: Site, worker: Worker) -> None:
    planned = site.done(*joining(site, worker, "--plan"))
    headers = f"linux-headers-{os.uname().release}"
    for words in (
        "2 NVIDIA cards without a driver and a container toolkit",
        f"`--nvidia install` installs {headers}, nvidia-driver, nvidia-smi, libcuda1, nvidia-container-toolkit",
        f"from file:{site.shared}/mirror",
    ):
        assert words in planned
    refused = site.command(*joining(site, worker))
    assert refused.returncode != 0
    assert "Not joined: nvidia is in the way" in refused.stdout
    assert not worker.ssh("dpkg-query -W | grep -i nvidia").stdout
    would = site.done(*joining(site, worker, "--plan", "--nvidia", "install"))
    assert "load the driver" in would


def test_driver_and_toolkit_come_from_the_mirror_and_docker_runs_with_them(site: Site, worker: Worker) -> None:
    sources = worker.ssh("sha256sum /etc/apt/sources.list; ls /etc/apt/sources.list.d").stdout
    said = site.done(*joining(site, worker, "--nvidia", "install"))
    assert "gpu1 has joined Test site" in said
    assert "nvidia       changed  2 NVIDIA cards, driver 570.10, container toolkit" in said
    assert worker.ssh("sha256sum /etc/apt/sources.list; ls /etc/apt/sources.list.d").stdout == sources
    settings = json.loads(worker.ssh("cat /etc/docker/daemon.json").stdout)
    assert settings["runtimes"] == {"nvidia": {"path": "nvidia-container-runtime", "args": []}}
    assert settings["default-runtime"] == "nvidia"
    assert settings["exec-opts"] == ["native.cgroupdriver=cgroupfs"]
    assert settings["node-generic-resources"] == [f"VRAM={2 * MEMORY_MIB}"]
    told = worker.ssh("docker info --format '{{.DefaultRuntime}} {{.CgroupDriver}}'").stdout.split()
    assert told == ["nvidia", "cgroupfs"], "Docker runs with what stands there"
    again = site.done(*joining(site, worker, "--nvidia", "install"))
    assert "Nothing to do: gpu1 has joined Test site already" in again
    assert "Nothing to do" in site.done(*joining(site, worker)), "with a driver nothing is asked, either"


def test_its_cards_are_known_and_each_container_sees_its_own(site: Site, worker: Worker) -> None:
    wait_for(lambda: site.is_ready("gpu1"), 60)
    node = site.node("gpu1")
    assert node is not None
    assert [(one.uuid, one.simulated) for one in node.devices] == [(A, False), (B, False)]
    load_image(site, worker)
    greedy = {"NVIDIA_VISIBLE_DEVICES": "all"}
    first, second, without = (look(site, gpus=gpus, variables=greedy) for gpus in ("20GiB", "20GiB", None))
    cards = {"nvidia0": A, "nvidia1": B}
    for found in (first, second):
        (card,) = found["devices"].keys() - {"nvidiactl"}
        assert found["variables"]["NVIDIA_VISIBLE_DEVICES"] == found["variables"]["CUDA_VISIBLE_DEVICES"] == cards[card]
        assert set(found["devices"].values()) == {"opens"}
        assert found["libraries"] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert without["devices"] == {}


def look(site: Site, **fields: Any) -> dict[str, Any]:
    """What a job there sees."""
    ask = SubmitIn(command=["python3", "-c", LOOK], on={"node": "gpu1"}, memory="64MiB", cpus="0.1", **fields)
    job = site.admin.submit(ask).workload
    ended = site.admin.wait(job.id, timeout_s=60)
    lines = [line.text for line in site.admin.logs(job.id)]
    assert ended.state == "succeeded", (ended.reason, lines)
    found: dict[str, Any] = json.loads(lines[-1])
    return found
