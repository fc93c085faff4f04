"""Maps a start request to a program in a container: its arguments, its variables, its secrets.

Pure; used by engines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from commonage.domain.errors import EngineFailure
from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import variable_of
from commonage.domain.workloads import Kind
from commonage.engines.containers.files.control_folder import can_export
from commonage.engines.containers.program import gpu_variables
from commonage.engines.containers.program.session import CONTAINER_SESSION
from commonage.engines.rundir.workspaces import folder_name

MARK = "COMMONAGE_ATTEMPT_ID"
PORT = 8888
"""Port that a session or service listens on if each container has an address of its own."""

_SHARED = re.compile(r"TZ|(https?|ftp|all|no)_proxy", re.IGNORECASE)
_LOOPBACK = re.compile(r"(?<=//)(?:127\.0\.0\.1|localhost):(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContainerNetwork:
    """Differences inside a container: the address by which it reaches this node, and the ports on which.

    `port` is the port to listen on, if any.
    """

    gateway: str
    ports: frozenset[int]
    port: int = PORT


@dataclass(frozen=True, slots=True)
class Program:
    """The program: argument vector, variables, secret variables, and working directory.

    `without`: names of variables that it must not have, whatever its image sets; `mps_pipe`: the node's folder that it
    must see at the same path.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    secrets: Mapping[str, str]
    home: str
    cwd: str
    without: tuple[str, ...] = ()
    mps_pipe: str | None = None

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
    command = request.command or (CONTAINER_SESSION if request.kind is Kind.SESSION else ())
    if not command:
        raise EngineFailure(f"{request.workload_id} has no command, so there is nothing to run")
    home = f"/home/{folder_name(request.owner)}"
    ids = {
        MARK: request.attempt_id,
        "COMMONAGE_WORKLOAD_ID": request.workload_id,
        "COMMONAGE_USER": request.owner,
        "COMMONAGE_TENANT": request.tenant,
    }
    variables = {
        "LANG": "C.UTF-8",
        **shared,
        **_ours(request, home, inside.port),
        **dict(request.environment.variables),
    }
    ours = dict(devices) | gpu_variables.of_the_environment(request) | gpu_variables.visible(request) | ids
    refused = gpu_variables.refused(request)
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
        gpu_variables.mps_pipe(devices),
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


def _ours(request: StartRequest, home: str, port: int) -> dict[str, str]:
    cores = str(max(1, -(-request.allocation.cpus_milli // 1000)))
    variables = {
        "HOME": home,
        "USER": request.owner,
        "LOGNAME": request.owner,
        # A log is read while it is written.
        "PYTHONUNBUFFERED": "1",
        # Libraries start as many threads as the node has cores, and would wait for each other.
        "OMP_NUM_THREADS": cores,
        "PYTHON_CPU_COUNT": cores,
    }
    if request.wants_port:
        variables["COMMONAGE_PORT"] = str(port)
    return variables | {variable_of(one.name): one.target for one in request.mounts}
