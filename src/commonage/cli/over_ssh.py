"""Brings files to nodes over SSH and runs a command there, by pyinfra: a program of its own, `python -m` this.

In a process of its own because pyinfra brings gevent, which would change how this process waits. What to do comes as
JSON on stdin (`Errand`); what the nodes say goes to stdout line by line. Exit codes: 0 all did it, 1 some did not.
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
class Errand:
    """`hosts` as `[USER@]HOST[:PORT]`; `files` by name, in base64; `command` runs as root in the folder with the files.

    `key` and `config` are files as `ssh -i` and `ssh -F` take them, empty for SSH's own; `sudo_password` is asked for
    where sudo does.
    """

    hosts: Sequence[str]
    command: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    config: str = ""
    sudo_password: str = ""


def send(errand: Errand) -> int:
    """Run it in a process of its own, whose output goes where ours goes. Gives its exit code."""
    command = [sys.executable, "-m", "commonage.cli.over_ssh"]
    return subprocess.run(command, input=json.dumps(asdict(errand)).encode(), check=False).returncode


def split_host(text: str) -> tuple[str, str, int]:
    """User (empty: SSH's own), host and port (0: SSH's own) of `[USER@]HOST[:PORT]`. Raises ValueError."""
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


def run(errand: Errand) -> int:
    """Do it on all hosts at once."""
    # Here alone: see above.
    import_module("gevent.monkey").patch_all()
    from pyinfra.api.config import Config
    from pyinfra.api.inventory import Inventory
    from pyinfra.api.output import set_echo
    from pyinfra.api.state import State

    # What it would say of a failure, we say.
    logging.getLogger("pyinfra").addHandler(logging.NullHandler())
    set_echo(_echo(len(errand.hosts) == 1))
    hosts = [(text, _data(text, errand)) for text in errand.hosts]
    made: Any = (Inventory, Config)  # both without types
    inventory, config = made[0]((hosts, {})), made[1](CONNECT_TIMEOUT=15, FAIL_PERCENT=100)
    pool = State(inventory, config).pool
    work = [pool.spawn(_visit, host, errand) for host in inventory]
    pool.join()
    failed = [host.name for host, one in zip(inventory, work, strict=True) if not one.value]
    if failed and len(errand.hosts) > 1:
        print(f"Failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def _data(text: str, errand: Errand) -> dict[str, Any]:
    user, host, port = split_host(text)
    data: dict[str, Any] = {"ssh_hostname": host, "_sudo": user != "root"}
    for name, value in (
        ("ssh_user", user),
        ("ssh_port", port),
        ("ssh_key", errand.key),
        ("ssh_config_file", errand.config),
        ("_sudo_password", errand.sudo_password),
    ):
        if value:
            data[name] = value
    return data


def _visit(host: Any, errand: Errand) -> bool:
    """One node. What is wrong is said, and does not keep the others."""
    from pyinfra.api.exceptions import ConnectError

    try:
        host.connect(raise_exceptions=True)
        return _do(host, errand)
    except ConnectError as error:
        print(f"{host.name}: no way in by SSH: {error}. See that `ssh` signs in there from here", flush=True)
    except Exception as error:  # a connection can break in many ways, each with an error of its own
        print(f"{host.name}: SSH broke off: {error!r}", flush=True)
    return False


def _do(host: Any, errand: Errand) -> bool:
    """Bring the files, run the command, take the files away."""
    from pyinfra.api.command import StringCommand

    data = host.data.dict()
    become = {name: data[name] for name in ("_sudo", "_sudo_password") if data.get(name)}
    folder = f"/tmp/commonage-{secrets.token_hex(8)}"  # noqa: S108 (made with mkdir below, which takes no other's)
    # Read by root alone in the end, but written by whoever signs in.
    made, _ = host.run_shell_command(StringCommand("mkdir", "-m", "0700", folder))
    if not made:
        print(f"{host.name}: {folder} could not be made there", flush=True)
        return False
    try:
        for name, content in errand.files.items():
            if not host.put_file(io.BytesIO(base64.b64decode(content)), f"{folder}/{name}"):
                print(f"{host.name}: {name} could not be brought there", flush=True)
                return False
        command = f"cd {folder} && {shlex.join(errand.command)}"
        done, said = host.run_shell_command(
            StringCommand("sh", "-c", shlex.quote(command)), print_output=True, **become
        )
        if not done and not said.output_lines:
            print(f"{host.name}: `{errand.command[0]} …` failed there and said nothing", flush=True)
        return bool(done)
    finally:
        host.run_shell_command(StringCommand("rm", "-rf", folder))
        host.disconnect()


def _echo(alone: bool) -> Any:
    """How pyinfra prints what a node says: with the node's name before it, where there are several."""

    def echo(message: object = "", **_: Any) -> None:
        text = str(message)
        print(text.partition("] ")[2] if alone and text.startswith("[") else text, flush=True)

    return echo


if __name__ == "__main__":
    sys.exit(run(Errand(**json.load(sys.stdin))))
