"""Maps a start request to a program in a container: its arguments, its variables, its secrets.

Pure; used by engines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import variable_of
from commonage.engines.containers.files.control_folder import can_export
from commonage.engines.rundir.notebooks import notebook_command, runs_notebook
from commonage.engines.rundir.programs import (
    SERVING,
    SESSION_COMMAND,
    command_of,
    default_variables,
    gang_variables,
    id_variables,
)
from commonage.engines.rundir.workspaces import folder_name
from commonage.files import preload

PORT = 8888
"""Port that a session or service listens on if each container has an address of its own."""
GANG_PORT = 29500
"""Port of a gang's first member: torchrun's own default. Each attempt has an address of its own."""
_HOST_FILE = "/tmp/commonage-hosts"  # noqa: S108 - in its container, where nobody else is

# NVIDIA's container runtime obeys a container's variables, whoever set them: its user, or its image (NVIDIA's own say
# `NVIDIA_VISIBLE_DEVICES=all`). As a daemon's default runtime it acts on them without a request. So we set that
# variable in every container, and remove those that would give it more GPUs.
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
"""A client of MPS finds its daemon here: a folder of the node, and the same path inside."""
_DEVICE_ACCESS = tuple(
    f"NVIDIA_{what}"
    for what in ("MIG_CONFIG_DEVICES", "MIG_MONITOR_DEVICES", "IMEX_CHANNELS", "GDS", "MOFED", "NVSWITCH", "GDRCOPY")
)
"""These give access to MIG settings, or to devices of the node that are not GPUs: an admin's environment may set them.
"""

FIND_PYTHON = """\
program=$(command -v "$1") && read -r first <"$program"
case "$first" in
  "#!"*python*) shift && exec ${first#??} -c "$0" "$program" "$@" ;;
esac
"""
"""For /bin/sh: the interpreter of the program $1 runs the text $0, with the program's path and the other arguments."""
_SERVING = SERVING.read_text(encoding="utf-8")

CONTAINER_SESSION = ("/bin/sh", "-c", f'{FIND_PYTHON}exec "$@"\n', _SERVING, *SESSION_COMMAND)
"""The same Jupyter server as everywhere; this one starts and ends faster."""

_SHARED = re.compile(r"TZ|(https?|ftp|all|no)_proxy", re.IGNORECASE)
_LOOPBACK = re.compile(r"(?<=//)(?:127\.0\.0\.1|localhost):(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContainerNetwork:
    """Differences inside a container: the address by which it reaches this node, and the ports on which.

    `port` is the port to listen on, if any. `peers` are the names of the members of its gang, by rank.
    """

    gateway: str
    ports: frozenset[int]
    port: int = PORT
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """The program: argument vector, variables, secret variables, and working directory.

    `without`: names of variables that it must not have, whatever its image sets; `mps_pipe`: the node's folder that it
    must see at the same path; `preload`: the node's folder with the interposer that it must load.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    secrets: Mapping[str, str]
    home: str
    cwd: str
    without: tuple[str, ...] = ()
    mps_pipe: str | None = None
    preload: str | None = None

    @property
    def env(self) -> list[str]:
        """Variables in Docker's form: a name alone removes what the image sets."""
        return [*(f"{name}={value}" for name, value in self.variables.items()), *self.without]


def shared_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The server's own variables that also apply in a container: time zone, proxies except on its loopback."""
    return {name: value for name, value in environ.items() if _SHARED.fullmatch(name) and not _is_loopback(value)}


def _is_loopback(value: str) -> bool:
    host = urlsplit(value if "//" in value else f"//{value}").hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def program_of(
    request: StartRequest, inside: ContainerNetwork, shared: Mapping[str, str], devices: Mapping[str, str]
) -> Program:
    """Return the program of a request. `devices` are the variables that hold its shares. Raises EngineFailure.

    Later ones win: shared, ours, the environment's, the owner's, the devices'. Only the server sets our ids and the
    visible GPUs. The loopback in a request is this node's: for a container it has another name.
    """
    is_notebook = runs_notebook(request)
    command = notebook_command(request.command) if is_notebook else command_of(request, CONTAINER_SESSION)
    home = f"/home/{folder_name(request.owner)}"
    variables = {
        "LANG": "C.UTF-8",
        **shared,
        **default_variables(request, home, inside.port if request.wants_port else None),
        **(gang_variables(request, inside.peers, GANG_PORT, _HOST_FILE) if inside.peers else {}),
        **{variable_of(mount.name): mount.target for mount in request.mounts},
        **dict(request.environment.variables),
    }
    device_access = {name: value for name, value in request.environment.variables if name in _DEVICE_ACCESS}
    ours = dict(devices) | device_access | {VISIBLE: visible_gpus(request)} | id_variables(request)
    refused = frozenset(_DEVICE_ACCESS) - device_access.keys()
    variables |= dict(request.variables) | ours
    fixed = ours.keys() | refused
    secrets = {name: value for name, value in request.secrets if name not in fixed}
    # A name that no shell accepts cannot be passed by the entry's file.
    variables |= {name: value for name, value in secrets.items() if not can_export(name)}
    secrets = {name: value for name, value in secrets.items() if can_export(name)}
    variables = {name: value for name, value in variables.items() if name not in secrets and name not in refused}
    return Program(
        tuple(_filled(word, request, inside) for word in command),
        {name: _reachable(_filled(value, request, inside), inside) for name, value in variables.items()},
        {name: _filled(value, request, inside) for name, value in secrets.items()},
        home,
        f"{home}/jobs/{request.workload_id}" if request.bundle_path is not None else home,
        tuple(sorted(refused)),
        devices.get(MPS_PIPE),
        devices.get(preload.VARIABLE),
    )


def _filled(text: str, request: StartRequest, inside: ContainerNetwork) -> str:
    if not request.wants_port:
        return text
    # A program that listens on the loopback could not be reached from outside its container.
    return text.replace("//127.0.0.1:{port}", "//0.0.0.0:{port}").replace("{port}", str(inside.port))


def _reachable(text: str, inside: ContainerNetwork) -> str:
    def other(found: re.Match[str]) -> str:
        return f"{inside.gateway}:{found[1]}" if int(found[1]) in inside.ports else found[0]

    return _LOOPBACK.sub(other, text)


def visible_gpus(request: StartRequest) -> str:
    """GPU uuids of its shares; `void`, which means none, without a share or with simulated GPUs."""
    real = dict.fromkeys(share.device_uuid for share in request.allocation.shares if not share.simulated)
    return ",".join(real) or "void"
