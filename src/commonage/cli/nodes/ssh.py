"""Copies files to hosts over SSH and runs a command there, with pyinfra. Runs as `python -m` in a separate process.

The process is separate because pyinfra uses gevent, which patches the standard library. The task comes as JSON on stdin
(`Task`); the output of the hosts goes to stdout line by line. Exit codes: 0 success on all hosts, 1 failure on some.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """`hosts` as `[USER@]HOST[:PORT]`; `files` by name, in base64; `command` runs as root in the folder with the files.

    `key` and `config` are the files for `ssh -i` and `ssh -F`; empty for the defaults. `sudo_password` is used if sudo
    asks for one.
    """

    hosts: Sequence[str]
    command: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    config: str = ""
    sudo_password: str = ""


def send(task: Task) -> int:
    """Run the task in a separate process with our stdout and stderr. Returns its exit code."""
    command = [sys.executable, "-m", "commonage.cli.nodes.ssh"]
    return subprocess.run(command, input=json.dumps(asdict(task)).encode(), check=False).returncode


def split_host(text: str) -> tuple[str, str, int]:
    """User, host and port of `[USER@]HOST[:PORT]`; empty user and port 0 are the defaults of SSH. Raises ValueError."""
    user, _, rest = text.rpartition("@")
    host, colon, port = rest.rpartition(":")
    if rest.startswith("["):  # an IPv6 address
        host, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif not colon or ":" in host:
        host, port = rest, ""
    if not host or (port and not (port.isascii() and port.isdigit())) or host.startswith("-"):
        raise ValueError(f"{text!r} is not [USER@]HOST[:PORT]")
    return user, host, int(port or 0)


def run(task: Task) -> int:
    # Only in this process: see above.
    import_module("gevent.monkey").patch_all()
    from pyinfra.api.config import Config
    from pyinfra.api.inventory import Inventory
    from pyinfra.api.output import set_echo
    from pyinfra.api.state import State

    # We report failures ourselves.
    logging.getLogger("pyinfra").addHandler(logging.NullHandler())
    set_echo(_echo(len(task.hosts) == 1))
    hosts = [(text, _data(text, task)) for text in task.hosts]
    factories: Any = (Inventory, Config)  # both without types
    inventory, config = factories[0]((hosts, {})), factories[1](CONNECT_TIMEOUT=15, FAIL_PERCENT=100)
    pool = State(inventory, config).pool
    greenlets = [pool.spawn(_visit, host, task) for host in inventory]
    pool.join()
    failed = [host.name for host, visit in zip(inventory, greenlets, strict=True) if not visit.value]
    if failed and len(task.hosts) > 1:
        print(f"Failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def _data(text: str, task: Task) -> dict[str, Any]:
    user, host, port = split_host(text)
    given = {
        "ssh_user": user,
        "ssh_port": port,
        "ssh_key": task.key,
        "ssh_config_file": task.config,
        "_sudo_password": task.sudo_password,
    }
    return {"ssh_hostname": host, "_sudo": user != "root"} | {name: value for name, value in given.items() if value}


def _visit(host: Any, task: Task) -> bool:
    """Run the task on one host. Prints an error; other hosts continue."""
    from pyinfra.api.exceptions import ConnectError

    try:
        host.connect(raise_exceptions=True)
        return _do(host, task)
    except ConnectError as error:
        print(f"{host.name}: SSH failed: {error}. Check that `ssh` signs in from this machine", flush=True)
    except Exception as error:  # a connection can break in many ways, each with an error of its own
        print(f"{host.name}: the SSH connection broke: {error!r}", flush=True)
    return False


def _do(host: Any, task: Task) -> bool:
    from pyinfra.api.command import StringCommand

    data = host.data.dict()
    become = {name: data[name] for name in ("_sudo", "_sudo_password") if data.get(name)}
    folder = f"/tmp/commonage-{secrets.token_hex(8)}"  # noqa: S108 (mkdir below fails if it exists)
    # The user who signs in writes the files; only root reads them.
    made, _ = host.run_shell_command(StringCommand("mkdir", "-m", "0700", folder))
    if not made:
        print(f"{host.name}: {folder} could not be created there", flush=True)
        return False
    try:
        for name, content in task.files.items():
            if not host.put_file(io.BytesIO(base64.b64decode(content)), f"{folder}/{name}"):
                print(f"{host.name}: {name} could not be copied there", flush=True)
                return False
        command = f"cd {folder} && {shlex.join(task.command)}"
        done, printed = host.run_shell_command(
            StringCommand("sh", "-c", shlex.quote(command)), print_output=True, **become
        )
        if not done and not printed.output_lines:
            print(f"{host.name}: `{task.command[0]} …` failed there without output", flush=True)
        return bool(done)
    finally:
        host.run_shell_command(StringCommand("rm", "-rf", folder))
        host.disconnect()


def _echo(alone: bool) -> Any:
    """The function by which pyinfra prints output of hosts: with the name of the host if there are several."""

    def echo(message: object = "", **_: Any) -> None:
        text = str(message)
        print(text.partition("] ")[2] if alone and text.startswith("[") else text, flush=True)

    return echo


if __name__ == "__main__":
    sys.exit(run(Task(**json.load(sys.stdin))))
