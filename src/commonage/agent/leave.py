"""`commonage-agent leave`: takes this machine out of its site. Docker, drivers, images and homes stay as they are.

Also what runs on a machine for `commonage node leave`. The control plane forgets the machine by `commonage node rm`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commonage.agent.steps_agent import COMMAND, HOME, PROGRAMS, SCRIPT, SERVICE, STATE, UNIT, runs
from commonage.agent.steps_host import Host, StepFailed
from commonage.agent.steps_storage import our_folders, remove_lines
from commonage.agent.steps_swarm import CERTIFICATES, LOGINS, read_logins
from commonage.agent.walls import Walls

DONE, FAILED, MISUSED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 left (or nothing to do), 1 something would not go, 2 asked wrongly."""
    parser = argparse.ArgumentParser(prog="commonage-agent leave", description="Takes this machine out of its site.")
    parser.add_argument("--force", action="store_true", help="also while workloads run here: they end")
    asked = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("leave: leaving changes the machine, so it must be root who does it", flush=True)
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
    left = "Left. Until an admin has it forgotten (`commonage node rm NAME`) its site counts this machine as lost."
    print(left if said else "Nothing to do: this machine is in no site.", flush=True)
    return DONE


def why_not(host: Host, *, force: bool) -> str:
    """Why it must not leave now, and what to do; empty if it may. `force`: workloads end. Raises StepFailed."""
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
        return f"{running} workloads run here; let them end (`commonage node drain`), or end them with --force"
    # It stays in the Swarm: what runs there runs on, and more would come, with neither agent nor walls.
    if _swarm(host).get("ControlAvailable") and (running or _takes_work(host)):
        return (
            "this machine is a manager of the Swarm, and stays in it: have it take no work first. `commonage node "
            "drain` lets end what runs, `docker node update --availability pause $(hostname)` keeps the Swarm from "
            "giving it more; then run this again"
        )
    return ""


def _swarm(host: Host) -> dict[str, Any]:
    """What Docker says of its Swarm. Raises StepFailed when it does not answer."""
    said = host.must("docker", "info", "--format", "{{json .Swarm}}") if host.has("docker") else "{}"
    return dict(json.loads(said))


def _takes_work(host: Host) -> bool:
    return host.must("docker", "node", "inspect", "self", "--format", "{{.Spec.Availability}}").strip() == "active"


def leave(host: Host) -> list[str]:
    """Take back what joining has put here; says what was done. Raises StepFailed, OSError."""
    said: list[str] = []
    # First of all, or it would take what follows for a fault.
    if runs(host):
        host.service("stop", SERVICE)
        said.append("the agent is stopped")
    swarm = _swarm(host)
    if swarm.get("ControlAvailable"):
        said.append("this machine is a manager of the Swarm and stays in it, without work")
    elif swarm.get("LocalNodeState", "inactive") != "inactive":
        host.must("docker", "swarm", "leave", "--force", timeout_s=120)
        said.append("out of the Swarm")
    # Only now: what ran here has ended with the Swarm, and nothing is left to be kept from the network.
    if host.has("iptables") and Walls().stand():
        Walls().pull_down()
        said.append("the walls around containers are taken down")
    for folder in our_folders(host):
        # A busy one stays, and so does its line: the next time knows it still.
        if host.mounted(Path(folder)) is not None:
            host.must("umount", folder)
        remove_lines(host, Path(folder))
        said.append(f"{folder} is not mounted any more")
    return [*said, *_remove_files(host)]


def _forget_login(host: Host, registry: str) -> None:
    """Docker's credentials there."""
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
