"""`commonage-agent leave`: removes this node from its site. Docker, drivers, images and homes stay as they are.

`commonage node leave` runs it on the node, too. Once no workload of the site runs on this node, the node notifies the
control plane with its own certificate, and the control plane removes it. Lost workloads may then be requeued.
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

from commonage.agent.config import HOME, MOUNTS, SETTINGS, STATE, read_config
from commonage.agent.connection import ControlPlaneConnection
from commonage.agent.containers.containers import LABEL
from commonage.agent.containers.mounts import Mounts
from commonage.agent.containers.processes import end_processes, unpause
from commonage.agent.network.firewall import Firewall
from commonage.agent.steps.credentials import CERTIFICATES, LOGINS, read_logins
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.service import COMMAND, PROGRAMS, SCRIPT, SERVICE, UNIT, is_running
from commonage.agent.steps.storage import managed_mounts, remove_fstab_lines
from commonage.domain.errors import CommonageError
from commonage.link import messages
from commonage.link.connection import Connection

DONE, FAILED, MISUSED = 0, 1, 2
_END_WITHIN_S = 20.0


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 left (or nothing to do), 1 something could not be removed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="commonage-agent leave", description="Remove this node from its site.")
    parser.add_argument("--force", action="store_true", help="end the workloads that run on this node")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("leave: run this as root: it changes the system", flush=True)
        return MISUSED
    host = Host()
    try:
        reason = refusal(host, force=options.force)
        if reason:
            print(f"leave: {reason}", flush=True)
            return FAILED
        changes = leave(host)
    except (StepFailed, OSError) as error:
        print(f"leave: {error}", flush=True)
        return FAILED
    for line in changes:
        print(line, flush=True)
    print("Left." if changes else "Nothing to do: this node is not joined to a site.", flush=True)
    return DONE


def refusal(host: Host, *, force: bool) -> str:
    """Why the node must not leave now, and what to do; empty if it may.

    `force`: workloads are ended. Raises StepFailed.
    """
    if not host.has("docker"):
        return ""
    ran = host.run("docker", "ps", "--quiet", "--filter", "label=commonage.attempt")
    if not ran.ok:
        return (
            f"Docker does not answer ({ran.output_tail}), so the workloads on this node are unknown, and it cannot "
            "leave the Swarm: start Docker (`systemctl start docker`), then run this again"
        )
    running = len(ran.out.split())
    if running and not force:
        workloads = "1 workload is" if running == 1 else f"{running} workloads are"
        return (
            f"{workloads} running on this node: drain it first with `commonage node drain {socket.gethostname()}` "
            "(--requeue requeues jobs at once), or end the workloads with --force"
        )
    # A manager stays in the Swarm: its workloads would continue, and new ones would start, without agent and firewall.
    if _swarm(host).get("ControlAvailable") and (running or _is_schedulable(host)):
        return (
            "this node is a manager of the Swarm, and stays in it. Drain it with `commonage node drain`, and make "
            "it unschedulable with `docker node update --availability pause $(hostname)`; then run this again"
        )
    return ""


def _swarm(host: Host) -> dict[str, Any]:
    """Docker's description of its Swarm. Raises StepFailed if Docker does not answer."""
    info = host.run_or_fail("docker", "info", "--format", "{{json .Swarm}}") if host.has("docker") else "{}"
    return dict(json.loads(info))


def _is_schedulable(host: Host) -> bool:
    return (
        host.run_or_fail("docker", "node", "inspect", "self", "--format", "{{.Spec.Availability}}").strip() == "active"
    )


def leave(host: Host) -> list[str]:
    """Undo what joining has installed; returns a line for each change. Raises StepFailed, OSError."""
    changes: list[str] = []
    # First, or the agent would treat the next changes as a fault.
    if is_running(host):
        host.service("stop", SERVICE)
        changes.append("stopped the agent")
    _end_workloads(host)
    swarm = _swarm(host)
    if swarm.get("ControlAvailable"):
        changes.append("this node is a manager of the Swarm and stays in it, unschedulable")
    elif swarm.get("LocalNodeState", "inactive") != "inactive":
        host.run_or_fail("docker", "swarm", "leave", "--force", timeout_s=120)
        changes.append("left the Swarm")
        _end_workloads(host)  # started in the meantime
    # Only now: no container is left that must be kept from the network.
    if host.has("iptables") and Firewall().exists():
        Firewall().remove()
        changes.append("removed the firewall around containers")
    mounts = Mounts(Path(MOUNTS), "")
    mounts.remove(mounts.all())
    for folder in managed_mounts(host):
        # A mount that is in use stays, and so does its fstab line, for the next run.
        if host.mounted(Path(folder)) is not None:
            host.run_or_fail("umount", folder)
        remove_fstab_lines(host, Path(folder))
        changes.append(f"unmounted {folder}")
    if (HOME / SETTINGS.name).exists():
        changes.append(_report_leave())
    return [*changes, *_remove_files(host)]


def _end_workloads(host: Host) -> None:
    """Kill all workloads, including paused ones. Raises StepFailed unless all have ended."""
    if not host.has("docker"):
        return
    ours = host.run_or_fail("docker", "ps", "--quiet", "--no-trunc", "--filter", f"label={LABEL}").split()
    if alive := end_processes(ours, _END_WITHIN_S, unpause):
        raise StepFailed(f"{len(alive)} containers cannot be killed: restart this machine, then run this again")


def _report_leave() -> str:
    """Notify the control plane that no workload of the site runs here any more; returns the result as a line.

    It uses the agents' link, on which a node can report only itself.
    """
    try:
        config = read_config(HOME / SETTINGS.name)
        asyncio.run(ControlPlaneConnection(config, {}, {}, _never_called).request(messages.LEFT, messages.Nothing()))
    except CommonageError as error:
        return (
            f"the control plane could not be notified: {error.message}. If `commonage node ls` still lists this node, "
            f"an admin must remove it: `commonage node rm {socket.gethostname()}`"
        )
    return "the control plane removed this node"


async def _never_called(_connection: Connection, _welcome: messages.Welcome) -> None:
    """Never called: this link carries one request only."""


def _forget_login(host: Host, registry: str) -> None:
    kept = read_logins(host)
    if kept.get("auths", {}).pop(registry, None) is not None:
        host.write(LOGINS, json.dumps(kept, indent=2) + "\n", 0o600)


def _remove_files(host: Host) -> list[str]:
    changes = []
    authority = host.read(HOME / "ca.crt")
    if authority is not None:
        for file in CERTIFICATES.glob("*/ca.crt"):
            if host.read(file) == authority:
                shutil.rmtree(file.parent)
                _forget_login(host, file.parent.name)
                changes.append(f"removed the trust in {file.parent.name}")
    if UNIT.exists():
        host.run_or_fail("systemctl", "disable", "--quiet", SERVICE)
    elif SCRIPT.exists() and host.has("update-rc.d"):
        host.run_or_fail("update-rc.d", "-f", SERVICE, "remove")
    for path in (UNIT, SCRIPT, COMMAND):
        if path.exists():
            path.unlink()
            changes.append(f"removed {path}")
    for folder in (HOME, STATE, PROGRAMS):
        if folder.exists():
            shutil.rmtree(folder)
            changes.append(f"removed {folder}")
    return changes
