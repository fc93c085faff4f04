"""`commonage-agent leave`: takes this node out of its site. Docker, drivers, images and homes stay as they are.

`commonage node leave` runs it on the node, too. Once nothing of the site runs here any more, the control plane is
notified with the node's own certificate and removes the node. Workloads that counted as running here may then be
requeued.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commonage.agent.config import MOUNTS, read_config
from commonage.agent.connection import ControlPlaneConnection
from commonage.agent.containers.containers import LABEL, end_processes
from commonage.agent.containers.mounts import Mounts
from commonage.agent.fencing.freezer import unpause
from commonage.agent.network.firewall import Firewall
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.service import COMMAND, HOME, PROGRAMS, SCRIPT, SERVICE, SETTINGS, STATE, UNIT, runs
from commonage.agent.steps.storage import our_folders, remove_lines
from commonage.agent.steps.swarm import CERTIFICATES, LOGINS, read_logins
from commonage.domain.errors import CommonageError
from commonage.link import messages
from commonage.link.connection import Connection

DONE, FAILED, MISUSED = 0, 1, 2
_END_WITHIN_S = 20.0


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 left (or nothing to do), 1 something could not be removed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="commonage-agent leave", description="Takes this machine out of its site.")
    parser.add_argument("--force", action="store_true", help="also while workloads run here: they end")
    asked = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("leave: leaving changes the node, so it must be root who does it", flush=True)
        return MISUSED
    host = Host()
    try:
        why = why_not(host, force=asked.force)
        if why:
            print(f"leave: {why}", flush=True)
            return FAILED
        said = leave(host)
    except (StepFailed, OSError) as error:
        print(f"leave: {error}", flush=True)
        return FAILED
    for line in said:
        print(line, flush=True)
    print("Left." if said else "Nothing to do: this machine is in no site.", flush=True)
    return DONE


def why_not(host: Host, *, force: bool) -> str:
    """Why the node must not leave now, and what to do; empty if it may.

    `force`: workloads are ended. Raises StepFailed.
    """
    if not host.has("docker"):
        return ""
    ran = host.run("docker", "ps", "--quiet", "--filter", "label=commonage.attempt")
    if not ran.ok:
        return (
            f"Docker does not answer ({ran.said}), so nobody can tell what runs here, nor take this machine out of the "
            "Swarm: start it (`systemctl start docker`), then run this again"
        )
    running = len(ran.out.split())
    if running and not force:
        runs_here = "1 workload runs" if running == 1 else f"{running} workloads run"
        return (
            f"{runs_here} here; `commonage node drain {socket.gethostname()}` lets what runs end in its own time, with "
            "--requeue jobs begin anew elsewhere at once. Run this again then, or now with --force, which ends them"
        )
    # The node would stay in the Swarm: its workloads would continue, and new ones would come, without agent and
    # firewall.
    if _swarm(host).get("ControlAvailable") and (running or _takes_work(host)):
        return (
            "this machine is a manager of the Swarm, and stays in it: have it take no work first. `commonage node "
            "drain` lets end what runs, `docker node update --availability pause $(hostname)` keeps the Swarm from "
            "giving it more; then run this again"
        )
    return ""


def _swarm(host: Host) -> dict[str, Any]:
    """Docker's description of its Swarm. Raises StepFailed if Docker does not answer."""
    said = host.must("docker", "info", "--format", "{{json .Swarm}}") if host.has("docker") else "{}"
    return dict(json.loads(said))


def _takes_work(host: Host) -> bool:
    return host.must("docker", "node", "inspect", "self", "--format", "{{.Spec.Availability}}").strip() == "active"


def leave(host: Host) -> list[str]:
    """Undo what joining has installed; returns a line for each change. Raises StepFailed, OSError."""
    said: list[str] = []
    # First, or the agent would treat the next changes as a fault.
    if runs(host):
        host.service("stop", SERVICE)
        said.append("the agent is stopped")
    _end_workloads(host)
    swarm = _swarm(host)
    if swarm.get("ControlAvailable"):
        said.append("this machine is a manager of the Swarm and stays in it, without work")
    elif swarm.get("LocalNodeState", "inactive") != "inactive":
        host.must("docker", "swarm", "leave", "--force", timeout_s=120)
        said.append("out of the Swarm")
        _end_workloads(host)  # started in the meantime
    # Only now: no container is left that must be kept from the network.
    if host.has("iptables") and Firewall().stand():
        Firewall().pull_down()
        said.append("the firewall around containers are taken down")
    mounts = Mounts(Path(MOUNTS), "")
    mounts.remove(mounts.all())
    for folder in our_folders(host):
        # A mount that is in use stays, and so does its fstab line, for the next run.
        if host.mounted(Path(folder)) is not None:
            host.must("umount", folder)
        remove_lines(host, Path(folder))
        said.append(f"{folder} is not mounted any more")
    if (HOME / SETTINGS.name).exists():
        said.append(_told())
    return [*said, *_remove_files(host)]


def _end_workloads(host: Host) -> None:
    """Kill all workloads, including paused ones. Raises StepFailed unless all have ended."""
    if not host.has("docker"):
        return
    ours = host.must("docker", "ps", "--quiet", "--no-trunc", "--filter", f"label={LABEL}").split()
    if alive := end_processes(ours, _END_WITHIN_S, unpause):
        raise StepFailed(f"{len(alive)} of its containers do not end; restart this machine, then run this again")


def _told() -> str:
    """Notify the control plane that nothing of the site runs here any more; returns the result as a line.

    It uses the agents' link, on which a node can speak only for itself.
    """
    try:
        config = read_config(HOME / SETTINGS.name)
        asyncio.run(ControlPlaneConnection(config, {}, {}, _never).ask(messages.LEFT, messages.Nothing()))
    except CommonageError as error:
        return (
            f"the control plane could not be told: {error.message}. If `commonage node ls` still lists this machine, "
            f"an admin removes it: `commonage node rm {socket.gethostname()}`"
        )
    return "the control plane knows this machine no more"


async def _never(_peer: Connection, _welcome: messages.Welcome) -> None:
    """Never called: this link carries one request only."""


def _forget_login(host: Host, registry: str) -> None:
    """Remove Docker's credentials for the registry."""
    kept = read_logins(host)
    if kept.get("auths", {}).pop(registry, None) is not None:
        host.write(LOGINS, json.dumps(kept, indent=2) + "\n", 0o600)


def _remove_files(host: Host) -> list[str]:
    said = []
    authority = host.read(HOME / "ca.crt")
    if authority is not None:
        for file in CERTIFICATES.glob("*/ca.crt"):
            if host.read(file) == authority:
                shutil.rmtree(file.parent)
                _forget_login(host, file.parent.name)
                said.append(f"{file.parent.name} is not trusted any more")
    if UNIT.exists():
        host.must("systemctl", "disable", "--quiet", SERVICE)
    elif SCRIPT.exists() and host.has("update-rc.d"):
        host.must("update-rc.d", "-f", SERVICE, "remove")
    for path in (UNIT, SCRIPT, COMMAND):
        if path.exists():
            path.unlink()
            said.append(f"{path} is gone")
    for folder in (HOME, STATE, PROGRAMS):
        if folder.exists():
            shutil.rmtree(folder)
            said.append(f"{folder} is gone")
    return said
