"""What an admin may set of the Docker engine. Filled by bootstrap; nothing is read from the environment here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from commonage.domain.errors import InvalidInput
from commonage.ports.registry import RegistryAccount

# The daemon's socket, or where it lies: whoever has it is root on this machine.
_SECRET_PLACES = (
    "/",
    "/run",
    "/var",
    "/var/run",
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/var/lib/docker",
    "/proc",
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine that every container gets. `{user}` and `{tenant}` in `source` are who runs it."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Settings of one Docker engine.

    `url` is the daemon's. `pull`: fetch an image that is `missing`, or `never`. `node_name`, `cpus_milli` and
    `memory_mib` (None: what the daemon says) and `labels` are what the one node reports. `cpu_hold`: what an attempt
    asked for is its `share` of cores that others want, too, or a `quota`. `reaches`: ports of this machine's loopback
    that containers reach by their network's gateway (the hub, the control plane). `networks` is the range of addresses
    of the tenants' networks. `account`: with what images of the site's own registry are fetched. `mounts`: see
    `parse_mount`.
    `processes_max`, `log_keep_mib`, `bundle_max_mib`, `disk_low_mib`, `keep_logs_days` and `keep_logs_mib` as for
    processes: of one attempt, of one log, of files sent along, free for the node to be sound, and of old logs.
    """

    url: str = "unix:///var/run/docker.sock"
    pull: Literal["missing", "never"] = "missing"
    node_name: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    cpu_hold: Literal["share", "quota"] = "share"
    reaches: tuple[int, ...] = ()
    networks: str = "10.213.0.0/16"
    account: RegistryAccount | None = None
    mounts: tuple[Mount, ...] = ()
    processes_max: int = 4096
    log_keep_mib: int = 256
    bundle_max_mib: int = 2048
    disk_low_mib: int = 256
    keep_logs_days: int = 90
    keep_logs_mib: int = 20 * 1024


def parse_mount(text: str) -> Mount:
    """`/host/folder:/folder` or `…:rw`; read-only unless said. Raises InvalidInput."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not (source.startswith("/") and target.startswith("/")) or mode not in ("", "ro", "rw"):
        raise InvalidInput(
            f"{text!r} is not a mount; it is written /folder/here:/folder/inside or …:rw", field="mounts"
        )
    if ".." in PurePosixPath(source).parts or str(PurePosixPath(source)) in _SECRET_PLACES:
        raise InvalidInput(f"{source} cannot be given to containers: it leads to the Docker daemon, and so to root")
    if str(PurePosixPath(target)) in ("/", "/home") or PurePosixPath(target).is_relative_to("/run/commonage"):
        raise InvalidInput(f"nothing can be mounted at {target}: that place is taken")
    return Mount(source, target, mode == "rw")
