"""Maps a start request to a program.

Its arguments and its variables. Pure; the folders are created elsewhere. Used by the launcher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import variable_of
from commonage.domain.workloads import Kind
from commonage.engines.rundir.notebooks import notebook_command, runs_notebook
from commonage.engines.rundir.programs import command_of, default_variables, gang_variables, id_variables
from commonage.files.injected import JUPYTER

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The server's variables that a workload may see: language, time zone, certificates, proxies. No others.
_SHARED = re.compile(
    r"LANG|LANGUAGE|LC_[A-Z]+|TZ|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|ftp|all|no)_proxy",
    re.IGNORECASE,
)


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """Folders and port of an attempt.

    Its owner's workspace, its working and temporary directories, its Python, its port, the paths of its volumes, and
    the virtual environment of its first kernel. `gang_port` is the port of its gang's first member.
    """

    workspace: Path
    cwd: Path
    tmp: Path
    programs: Path
    python_root: Path | None
    port: int | None
    volumes: Mapping[str, str] = field(default_factory=dict)
    kernel: Path | None = None
    gang_port: int | None = None

    @property
    def host_file(self) -> Path:
        return self.tmp / "commonage-hosts"


@dataclass(frozen=True, slots=True)
class Program:
    """The program to start: the argument vector, and all of its variables."""

    command: tuple[str, ...]
    variables: Mapping[str, str]


def shared_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if _SHARED.fullmatch(name)}


def url_of(port: int | None) -> str | None:
    return None if port is None else f"http://{LOOPBACK}:{port}"


def program_of(request: StartRequest, context: ProcessContext, shared: Mapping[str, str]) -> Program:
    """Return the program of a request at its place. Raises EngineFailure if there is nothing to run.

    Later ones win: shared, ours, the environment's, the owner's. Only the server sets our ids.
    """
    command = notebook_command(request.command) if runs_notebook(request) else command_of(request)
    variables = {"LANG": "C.UTF-8", **shared, **_ours(request, context)}
    variables |= dict(request.environment.variables)
    variables |= {variable_of(name): context for name, context in context.volumes.items()}
    variables |= dict(request.variables) | dict(request.secrets)
    if request.kind is Kind.SESSION:
        own = variables.get("JUPYTER_CONFIG_PATH")
        variables["JUPYTER_CONFIG_PATH"] = f"{own}:{JUPYTER}" if own else str(JUPYTER)
    variables |= id_variables(request)
    if context.port is None:
        return Program(command, variables)
    port = str(context.port)
    return Program(
        tuple(word.replace("{port}", port) for word in command),
        {name: value.replace("{port}", port) for name, value in variables.items()},
    )


def enforced(program: Program, variables: Mapping[str, str]) -> Program:
    """Add the variables that enforce its shares: they win, but a PYTHONPATH of the program is appended to theirs."""
    merged = {**program.variables, **variables}
    own = program.variables.get("PYTHONPATH")
    if own and "PYTHONPATH" in variables:
        merged["PYTHONPATH"] = f"{variables['PYTHONPATH']}:{own}"
    return Program(program.command, merged)


def _ours(request: StartRequest, context: ProcessContext) -> dict[str, str]:
    variables = default_variables(request, str(context.workspace), context.port)
    variables |= {"TMPDIR": str(context.tmp), "PATH": f"{context.programs}:{PATH}"}
    if context.gang_port is not None:
        hosts = [LOOPBACK] * len(request.gang)
        variables |= gang_variables(request, hosts, context.gang_port, str(context.host_file))
    if context.kernel is not None:
        # Its programs come before those of the server, which has a Python of its own.
        variables |= {"PATH": f"{context.kernel}/bin:{variables['PATH']}", "VIRTUAL_ENV": str(context.kernel)}
    elif context.python_root is not None:
        variables["VIRTUAL_ENV"] = str(context.python_root)
    return variables
