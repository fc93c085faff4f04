"""Parts of a workload's program that all engines share: variables, the command of a session, the shell of an exec.

Standard library only, because agents use it too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.ports.execs import NotRunning

ATTEMPT_MARK = "COMMONAGE_ATTEMPT_ID"
"""Variable that marks all processes of an attempt."""
MARK = "COMMONAGE_EXEC"
"""Variable that marks all processes of an exec command; its value is unique per command."""
GRACE_S = 1.0
"""Seconds between the request to end (SIGHUP) and SIGKILL."""
KILLED = 137

SHELL = """
if [ "$#" -eq 0 ]; then
  if command -v bash >/dev/null 2>&1; then set -- bash; else set -- sh; fi
fi
exec "$@"
"""
"""End of the /bin/sh -c script that starts a command. Its arguments are the command; without any it starts a shell."""

NAME = "commonage exec"
"""Name under which that shell reports a command that is not found."""


def new_mark() -> str:
    return secrets.token_hex(12)


def not_running(attempt_id: str) -> NotRunning:
    return NotRunning(f"{attempt_id[:100]} does not run, so no command can run in it")


_SHELL = 'exec "${SHELL:-$(command -v bash || command -v sh)}"'
_TERMINALS = json.dumps({"shell_command": ["/bin/sh", "-c", _SHELL]})

SERVING = Path(__file__).with_name("serving.py")
"""The program that runs a session's server faster than that server does itself."""

PRELOADING = Path(__file__).with_name("preloading.py")
"""The program that loads a server's libraries before its user is known."""

SESSION_COMMAND = (
    "jupyterhub-singleuser",
    # Sessions run as the server's own user, or as root in a container; Jupyter's refusal to run as root protects
    # nobody.
    "--allow-root",
    # Deletes files for good: a trash folder that no page shows would fill the home, and a full disk would stay full.
    "--FileContentsManager.delete_to_trash=False",
    # Otherwise Jupyter starts `sh -l`, whose PATH is the system's: without the environment's own programs.
    # Seconds for which it remembers that a user may enter; five minutes are long after a role was taken away.
    "--HubOAuth.cache_max_age=30",
    f"--ServerApp.terminado_settings={_TERMINALS}",
)


def command_of(request: StartRequest, session_command: tuple[str, ...] = SESSION_COMMAND) -> tuple[str, ...]:
    """Raises EngineFailure if there is nothing to run."""
    command = request.command or (session_command if request.kind is Kind.SESSION else ())
    if not command:
        raise EngineFailure(f"{request.workload_id} has no command, so there is nothing to run")
    return command


def id_variables(request: StartRequest) -> dict[str, str]:
    """Variables that only the server may set."""
    return {
        ATTEMPT_MARK: request.attempt_id,
        "COMMONAGE_WORKLOAD_ID": request.workload_id,
        "COMMONAGE_USER": request.owner,
        "COMMONAGE_TENANT": request.tenant,
    }


def gang_variables(request: StartRequest, hosts: Sequence[str], port: int, host_file: str) -> dict[str, str]:
    """Variables by which the members of a gang find each other. The owner may replace them.

    `hosts` are the members' addresses by rank; the first listens on `port`. Programs that start one process in each
    member read RANK and WORLD_SIZE. torchrun reads PET_*, and sets those for its processes. Open MPI, DeepSpeed and
    Horovod read `host_file`.
    """
    rank, size, first = str(request.rank), str(len(hosts)), hosts[0]
    return {
        "MASTER_ADDR": first,
        "MASTER_PORT": str(port),
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": rank,
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": str(port),
        "PET_NNODES": size,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": str(gang_slots(request)),
        "COMMONAGE_GANG_HOSTS": ",".join(hosts),
        "COMMONAGE_GANG_SLOTS": str(gang_slots(request)),
        "COMMONAGE_HOST_FILE": host_file,
        "OMPI_MCA_orte_default_hostfile": host_file,
        "PRTE_MCA_prte_default_hostfile": host_file,
    }


def gang_slots(request: StartRequest) -> int:
    """Processes of each member: one for each of its GPUs. All members have the same request."""
    return max(1, len(request.allocation.shares))


def default_variables(request: StartRequest, home: str, port: int | None) -> dict[str, str]:
    """Our variables, which the environment and the owner may replace."""
    cores = str(max(1, -(-request.allocation.cpus_milli // 1000)))
    variables = {
        "HOME": home,
        "USER": request.owner,
        "LOGNAME": request.owner,
        # A log is read while it is written.
        "PYTHONUNBUFFERED": "1",
        # Libraries start as many threads as the node has cores, and would wait for each other when the cores are busy
        # or there is a quota.
        "OMP_NUM_THREADS": cores,
        "PYTHON_CPU_COUNT": cores,
    }
    return variables if port is None else variables | {"COMMONAGE_PORT": str(port)}
