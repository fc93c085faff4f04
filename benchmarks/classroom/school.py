"""The school: `commonage up --domain` on the manager of a Swarm of three workers, with agents and a git repository.

The nodes are network namespaces with a Docker daemon each. This process moves into the manager's, where the edge
listens, so students connect as from the site's own network.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import ssl
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from tests.contract.harness.agents import AgentProgram, make_config
from tests.contract.harness.dockerd import new_folder
from tests.contract.harness.jupyter_image import NAME, archive, load_jupyter
from tests.contract.harness.leftovers import unmount_below
from tests.contract.harness.processes import processes_of
from tests.contract.harness.swarm import Swarm, enter
from tests.integration.git_server import PushedRepository, git_server

from benchmarks.report import BenchmarkError, progress
from benchmarks.server import Installation, Served
from commonage.link.certificate_authority import CertificateAuthority
from commonage.sdk import ApiError, Client

DOMAIN = "gpu.example.test"
PASSWORD = "a-password-for-students"
WORKERS = 3
SHARE_GIB, _GPUS = 4, 2
_ADMIN_PASSWORD = "a-long-password-for-the-admin-of-this-benchmark"
_AGENTS_PORT = 8444
_READY_WITHIN_S = 300.0


@dataclass
class School:
    """`address` is the edge's; `trusting` trusts only its certificate authority."""

    swarm: Swarm
    served: Served
    repository: PushedRepository
    address: str
    trusting: ssl.SSLContext
    folder: Path
    gpu_gib: int
    agents: dict[str, AgentProgram] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)

    def start_agent(self, name: str) -> None:
        """The files that joining leaves on a node."""
        node, folder = self.swarm.machines[name], self.folder / "agents" / name
        config = make_config(
            folder,
            CertificateAuthority.open(self.folder / "data" / "authority"),
            name,
            _AGENTS_PORT,
            node_id=self.swarm.node_id(name),
            control=(f"{self.address}:{_AGENTS_PORT}",),
            docker=node.daemon.url,
            gpus=f"simulated:{_GPUS}x{self.gpu_gib}GiB",
            fence_after_s=2.0,
            firewall=True,
        )
        self.agents[name] = AgentProgram(folder, config, before=node.inside())

    def cut_power(self, name: str) -> None:
        """Unplug a worker: everything on it ends at once, without a message."""
        node = self.swarm.machines[name]
        there = [one["Labels"]["commonage.attempt"] for one in node.daemon.containers(label=["commonage.attempt"])]
        node.unplug()
        self.dead.append(name)
        self.agents.pop(name).kill()
        node.daemon.kill()
        for pid in (pid for attempt in there for pid in processes_of(attempt)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End the agents; start the dead daemons again, so that their containers can be removed.

        They forget the Swarm first: they would wait 20 seconds for the manager.
        """
        for agent in self.agents.values():
            agent.close()
        for name in self.dead:
            daemon = self.swarm.machines[name].daemon
            shutil.rmtree(daemon.folder / "data/swarm", ignore_errors=True)
            daemon.start()


@contextmanager
def school(seats: int) -> Iterator[School]:
    """The whole school, with every worker ready. Two of the workers have room for all seats. Raises BenchmarkError."""
    gpu_gib = SHARE_GIB * ceil(seats / (_GPUS * (WORKERS - 1)))
    folder = new_folder()
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        closing.callback(unmount_below, folder)
        progress("the image of the sessions")
        archive()
        progress(f"a Swarm of {WORKERS} workers")
        swarm = Swarm(WORKERS, vram_mib=_GPUS * gpu_gib * 1024, arguments=["--no-new-privileges"])
        closing.callback(swarm.remove)
        swarm.start(_empty_image(), "commonage-bench-empty:1")
        manager = swarm.manager
        with ThreadPoolExecutor() as meanwhile:
            loads = [meanwhile.submit(load_jupyter, node.daemon) for node in swarm.workers]
            enter(manager.space)
            progress("the server and its agents")
            repository = closing.enter_context(git_server(folder / "git")).repository("course")
            installation = _installation(folder, swarm)
            closing.callback(installation.stop)
            installation.start()
            for load in loads:
                load.result()
        root = folder / "data/https/pki/authorities/local/root.crt"
        _until(root.exists, "the authority of the edge")
        trusting = ssl.create_default_context(cafile=str(root))
        made = School(swarm, installation.served(), repository, manager.address, trusting, folder, gpu_gib)
        closing.callback(made.end)
        for node in swarm.workers:
            made.start_agent(node.name)
        with Client(made.served.url, made.served.token) as admin:
            _until(lambda: _ready_workers(admin) == WORKERS, "all workers are ready")
            admin.drain("local", manager.name)
        yield made


def _installation(folder: Path, swarm: Swarm) -> Installation:
    passwords = folder / "passwords"
    passwords.touch(mode=0o600)
    passwords.write_text(f"admin={_ADMIN_PASSWORD}\nusers={PASSWORD}\n")
    (folder / "shared").mkdir()
    variables = {
        "COMMONAGE_DOCKER_URL": swarm.manager.daemon.url,
        "COMMONAGE_DOCKER_IMAGE": NAME,
        "COMMONAGE_SHARED_DIR": str(folder / "shared"),
        "COMMONAGE_HTTPS_BIND": swarm.manager.address,
    }
    flags = ("--engine", "swarm", "--domain", DOMAIN, "--tls", "internal", "--password-file", str(passwords))
    return Installation(folder, *flags, variables=variables)


def _ready_workers(admin: Client) -> int:
    with suppress(ApiError):
        return sum(one.state == "ready" and bool(one.devices) for one in admin.nodes())
    return 0


def _until(reached: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + _READY_WITHIN_S
    while not reached():
        if time.monotonic() > give_up:
            raise BenchmarkError(f"not within {_READY_WITHIN_S:.0f} s: {what}")
        time.sleep(0.2)


def _empty_image() -> bytes:
    """No workload runs in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        made.addfile(tarfile.TarInfo("empty"))
    return buffer.getvalue()
