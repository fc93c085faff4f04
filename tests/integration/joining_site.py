"""For tests of machines that join for real: a Swarm of one manager with a whole Commonage on it, and what admins do.

Jobs run on the nodes that joined. The nodes reach no other host; packages come from a local mirror.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.served import Served, free_port, served
from tests.contract.harness.dockerd import IMAGE, minimal_image, new_folder
from tests.contract.harness.newcomer import ADMIN, MIRROR, Newcomer
from tests.contract.harness.swarm import MANAGER, Swarm, doorway
from tests.fakes.waiting import wait_until

from commonage.sdk import Client
from commonage.wire.nodes import NodeOut
from commonage.wire.workloads import SubmitIn, WorkloadOut

STEPS = ("--mirror", f"file:{MIRROR}", "--gpus", "simulated:1x24GiB", "--disk", "1")
_IMAGE_FILE = "image.tar"


@dataclass
class Site:
    """A Swarm of one manager, which takes no work, and the control plane on it. Nodes join with these `steps`."""

    swarm: Swarm
    server: Served
    admin: Client
    token: str
    shared: Path
    steps: tuple[str, ...]

    # --- what admins type ---------------------------------------------------------------------------------------------

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.server.cli(*words, token=self.token)

    def done(self, *words: str) -> str:
        ran = self.command(*words)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def join(self, node: Newcomer, *more: str, user: str = ADMIN) -> str:
        """`commonage node join`, over SSH; what it prints."""
        return self.done(*self.joining(node, *more, user=user))

    def joining(self, node: Newcomer, *more: str, user: str = ADMIN) -> tuple[str, ...]:
        access = ("--ssh-config", str(node.ssh_config))
        return ("node", "join", f"{user}@{node.address}", *access, *self.steps, *more)

    def leave(self, node: Newcomer, *more: str) -> str:
        access = ("--ssh-config", str(node.ssh_config))
        return self.done("node", "leave", f"{ADMIN}@{node.address}", *access, *more)

    def script(self, *more: str) -> str:
        """The command that a person types on a node."""
        made = json.loads(self.done("node", "token", "--for", "10m", "--json"))
        options = " ".join(["--token-file", "-", *self.steps, *more])
        return f"echo {made['token']} | {{ {made['command']} {options}; }}"

    # --- what is seen of a node ------------------------------------------------------------------------------------

    def node(self, name: str) -> NodeOut | None:
        return next((one for one in self.admin.nodes() if one.name == name), None)

    def is_ready(self, name: str) -> bool:
        """Whether it takes work: the Swarm sees it, its agent reports, its firewall stand."""
        node = self.node(name)
        return node is not None and node.state == "ready" and bool(node.devices)

    def states(self, name: str) -> list[str]:
        """The Swarm's descriptions of all nodes of this name."""
        nodes = self.swarm.manager.daemon.ask("GET", "/nodes")
        return [one["Status"]["State"] for one in nodes if one["Description"]["Hostname"] == name]

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def load_image(self, node: Newcomer) -> None:
        """Have the image of jobs on the node, whose Docker may not run yet."""
        node.ssh("docker info >/dev/null 2>&1 || /etc/init.d/docker start")
        wait_until(lambda: node.ssh(f"docker import {self.shared}/{_IMAGE_FILE} {IMAGE}").returncode == 0)

    def submit(self, node: str, script: str, **fields: Any) -> WorkloadOut:
        ask = SubmitIn(command=["sh", "-c", script], on={"node": node}, memory_mib=64, cpus="0.1", **fields)
        return self.admin.submit(ask).workload

    def said_of(self, node: str, script: str, **fields: Any) -> list[str]:
        job = self.submit(node, script, **fields)
        ended = self.admin.wait(job.id, timeout_s=240)
        said = [line.text for line in self.admin.logs(job.id)]
        assert ended.state == "succeeded", f"{ended.reason}: {said}"
        return said


@contextmanager
def new_folders() -> Iterator[tuple[Path, Path]]:
    """The server's own, and the one that all nodes see."""
    with ExitStack() as closing:
        folder, shared = new_folder(), new_folder()
        for one in (folder, shared):
            closing.callback(shutil.rmtree, one, ignore_errors=True)
        yield folder, shared


@contextmanager
def site_of(
    swarm: Swarm,
    folder: Path,
    shared: Path,
    *,
    steps: tuple[str, ...] = STEPS,
    variables: Mapping[str, str],
    image: bytes | None = None,
) -> Iterator[Site]:
    """The site, within the block. `variables` are further settings of the server, `image` is the image of jobs."""
    manager, port = swarm.manager, free_port()
    (shared / _IMAGE_FILE).write_bytes(image or minimal_image())
    told = {
        "COMMONAGE_NAME": "Test site",
        "COMMONAGE_BIND": "0.0.0.0",
        "COMMONAGE_DOCKER_URL": manager.daemon.url,
        "COMMONAGE_DOCKER_IMAGE": IMAGE,
        "COMMONAGE_SHARED_DIR": str(shared),
        "COMMONAGE_SITE_ADDRESS": manager.address,
        **variables,
    }
    runs = served(folder, "--engine", "swarm", before=manager.inside(), variables=told, port=port)
    with doorway(manager.space, port), runs as server:
        token = server.token("admin", "--admin")
        with Client(server.url, token) as admin:
            wait_until(lambda: MANAGER in {one.name for one in admin.nodes()})
            admin.drain("local", MANAGER)
            yield Site(swarm, server, admin, token, shared, steps)


def what_is_there(node: Newcomer) -> str:
    """The state that joining could change: files, mounts, processes with their start, the Swarm, packages."""
    look = r"""
        find /etc /usr/local /root /var/lib/commonage-agent -type f ! -path '*/__pycache__/*' ! -name 'report*' \
            ! -name neighbors.json -printf '%p %T@ %s %m\n' 2>/dev/null | sort
        grep -v -e overlay -e /run/docker -e shm /proc/mounts
        for name in dockerd 'containerd$' python3; do
            for pid in $(grep -l "^Name:.$name" /proc/[0-9]*/status 2>/dev/null | cut -d / -f 3); do
                echo "$name $pid $(cut -d ' ' -f 22 /proc/$pid/stat)"
            done
        done
        docker info --format '{{.Swarm.NodeID}} {{.Swarm.LocalNodeState}}' 2>/dev/null
        dpkg-query -W
    """
    seen = node.ssh(look)
    assert seen.returncode == 0, seen.stderr
    return seen.stdout
