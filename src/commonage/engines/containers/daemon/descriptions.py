"""Parts of a container description that all engines share, in terms of Docker's API. Pure.

A process in a container is at most root there, with few capabilities. It sees its owner's workspace, its control
folder, its log, and the mounts of the admin and of its request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import folder_name
from commonage.engines.containers.files import control_folder
from commonage.engines.containers.files.mounts import bind_options, docker_mounts, source_of
from commonage.engines.containers.files.prepare import INJECTED_INSIDE, folders_of
from commonage.engines.containers.program import Program
from commonage.engines.settings import Mount
from commonage.files import preload

LABEL = "commonage"
MIB = 1024 * 1024
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""Enough to install packages and change users inside.

Nothing reaches the settings of the network or the kernel, devices, or other processes' memory.
"""
# An image's labels also apply to its containers, unless these override them: an image could make its containers look
# like parts of a Compose project, even this installation's own, and the admin's `docker-compose exec` would enter them.
_NOT_OF_IMAGES = ("com.docker.compose.project", "com.docker.stack.namespace")
SHM_PART = 2
"""Shared memory is limited to the memory divided by this."""


@dataclass(frozen=True, slots=True)
class AttemptFolders:
    """Paths of an attempt's own folders, as the control plane sees them."""

    workspace: str
    control_folder: str
    log: str


def network_name(installation: str, tenant: str) -> str:
    return f"commonage-{installation[:8]}-{folder_name(tenant)}"


def installation_filter(installation: str) -> str:
    """The label of all our objects, as a filter."""
    return f"{LABEL}.installation={installation}"


def network_labels(installation: str, tenant: str) -> dict[str, str]:
    return {f"{LABEL}.installation": installation, f"{LABEL}.tenant": tenant}


def labels(request: StartRequest, installation: str) -> dict[str, str]:
    said = {
        "installation": installation,
        "attempt": request.attempt_id,
        "workload": request.workload_id,
        "kind": str(request.kind),
        "name": request.name,
        "owner": request.owner,
        "tenant": request.tenant,
    }
    return {f"{LABEL}.{name}": value for name, value in said.items()} | dict.fromkeys(_NOT_OF_IMAGES, "")


def host_name(request: StartRequest) -> str:
    return request.workload_id.lower()[-12:]


def bind(source: str, target: str, *, writable: bool) -> dict[str, Any]:
    mode = {"ReadOnly": not writable, "BindOptions": bind_options(writable)}
    return {"Type": "bind", "Source": source, "Target": target, **mode}


def own_mounts(folders: AttemptFolders, program: Program) -> list[dict[str, Any]]:
    """The folders of an attempt itself."""
    return [
        bind(folders.workspace, program.home, writable=True),
        bind(folders.control_folder, control_folder.INSIDE, writable=True),
        bind(folders.log, control_folder.LOG_INSIDE, writable=True),
    ]


def share_mounts(program: Program) -> list[dict[str, Any]]:
    """Mounts that enforce its share: the sockets of an MPS daemon, or an interposer. They belong to its node."""
    made = []
    if program.mps_pipe is not None:
        made.append(bind(program.mps_pipe, program.mps_pipe, writable=True))
    if program.preload is not None:
        # Files, not their folder: a container keeps the version with which it started.
        for name, inside in ((preload.LIBRARY, preload.LIBRARY_INSIDE), (preload.LIST, preload.LIST_INSIDE)):
            made.append(bind(f"{program.preload}/{name}", inside, writable=False))
    return made


def injected_mounts(request: StartRequest, place: str) -> list[dict[str, Any]]:
    return [
        bind(f"{place}/{folder.name}", f"{INJECTED_INSIDE}/{folder.name}", writable=False)
        for folder in folders_of(request)
    ]


def requested_mounts(
    request: StartRequest, installation: str, shared: Sequence[Mount], *, quota: bool
) -> list[dict[str, Any]]:
    """The admin's mounts, and the volumes of the request; `quota`: their size can be limited."""
    return [
        *(bind(source_of(mount, request), mount.target, writable=mount.writable) for mount in shared),
        *docker_mounts(request.mounts, installation, quota=quota),
    ]


def instant(text: str) -> float | None:
    """Docker's time stamp as unix seconds; None for its zero."""
    if text.startswith("0001"):
        return None
    # It has nanoseconds; Python reads microseconds.
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return moment + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)
