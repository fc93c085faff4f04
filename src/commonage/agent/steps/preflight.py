"""The first steps of joining: checks whether this node can join at all, and the small programs that joining needs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from commonage.agent.steps.host import Host, install, packages_for
from commonage.agent.steps.step import CheckResult, JoinContext, Step, blocked, done, needed

OLDEST_KERNEL = (4, 19)
MAX_SKEW_S = 30.0
DOCKER_ROOT = Path("/var/lib/docker")
_SWARM_PORTS = ((socket.SOCK_STREAM, 7946), (socket.SOCK_DGRAM, 7946), (socket.SOCK_DGRAM, 4789))
_GIB = 1024**3


class Preflight(Step):
    """Step: kernel, disk, ports, clock, name. Nothing is changed before all checks pass."""

    name = "preflight"

    def check(self, context: JoinContext) -> CheckResult:
        problems = [*_kernel(context.host), *_disk(context), *_clock(context), *_name(context), *_ports(context)]
        if problems:
            return blocked("; ".join(problems))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
        free = _free_gib(DOCKER_ROOT)
        return done(
            f"Linux {platform.release().split('-')[0]}, {os.cpu_count()} cores, {memory:.0f} GiB of memory, "
            f"{free:.0f} GiB of disk free, clock skew {abs(context.skew_s):.1f} s"
        )


class Tools(Step):
    """Step: the programs that the steps and the agent use, including `docker` if only the daemon is installed."""

    name = "tools"

    def check(self, context: JoinContext) -> CheckResult:
        missing = _missing_tools(context.host)
        return needed(f"install {', '.join(missing)}") if missing else done("openssl and iptables are installed")

    def apply(self, context: JoinContext) -> None:
        install(context.host, packages_for(context.host, _missing_tools(context.host)), context.options.mirror)


def _missing_tools(host: Host) -> list[str]:
    missing = [name for name in ("openssl", "iptables") if not host.has(name)]
    # A separate package since Debian 13, and a daemon may be installed without it.
    return [*missing, "docker-cli"] if host.has("dockerd") and not host.has("docker") else missing


def _kernel(host: Host) -> Iterator[str]:
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_KERNEL:
        yield f"the kernel is {platform.release()}: {'.'.join(map(str, OLDEST_KERNEL))} or later is required"
    known = (host.read(Path("/proc/filesystems")) or "").split()
    if "overlay" not in known and not host.run("modprobe", "overlay").ok:
        yield "the kernel lacks the overlay file system, which Docker's storage needs"


def _disk(context: JoinContext) -> Iterator[str]:
    free, wanted = _free_gib(DOCKER_ROOT), context.options.disk_gib
    if free < wanted:
        yield (
            f"{free:.1f} GiB are free for images and containers in {DOCKER_ROOT}, {wanted:g} GiB are required: free "
            "disk space, or lower --disk"
        )


def _free_gib(path: Path) -> float:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / _GIB


def _clock(context: JoinContext) -> Iterator[str]:
    if abs(context.skew_s) > MAX_SKEW_S:
        way = "ahead of" if context.skew_s > 0 else "behind"
        yield (
            f"the clock of this machine is {abs(context.skew_s):.0f} s {way} the control plane's: certificates need "
            "equal clocks. Run `timedatectl set-ntp true`, or set the clock by hand"
        )


def _name(context: JoinContext) -> Iterator[str]:
    name = context.options.node
    if name.split(".", maxsplit=1)[0] in {"", "localhost", "debian", "ubuntu"}:
        yield f"the host name {name!r} is not unique: set another one with `hostnamectl hostname NAME`"


def _ports(context: JoinContext) -> Iterator[str]:
    registry, is_elsewhere = context.join_config.registry, bool(context.join_config.registry_authority)
    if registry and is_elsewhere and (why := _unreachable(registry)):
        note = f"{registry}, the control plane's registry, cannot be reached ({why}): its images do not start here"
        context.notes += [note] if note not in context.notes else []
    for what, place in [("the Swarm's manager", one) for one in context.join_config.managers[:1]] + [
        ("the agents' listener", context.join_config.agents[0]),
        *([("the registry", registry)] if registry and not is_elsewhere else []),
    ]:
        if why := _unreachable(place):
            yield f"{what} at {place} cannot be reached ({why}): open that port between the two machines"
    if (context.host.read(Path("/var/lib/docker/swarm/docker-state.json"))) is None:
        for kind, port in _SWARM_PORTS:
            if _taken(kind, port):
                word = "tcp" if kind is socket.SOCK_STREAM else "udp"
                yield f"port {port}/{word} is in use, and the Swarm's nodes need it: end the program that uses it"


def _unreachable(place: str) -> str:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _taken(kind: int, port: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False
