"""`commonage ssh` and `commonage port-forward`: reach a running workload from the user's computer.

Both run a program in the workload and speak to it over the WebSocket of `exec`; so they work on every engine and site,
with the permission of `exec`, and no port of a node is opened.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli.connection import Server, calls_server, connect, credentials_file, find_workload
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.workloads.exec import forward
from commonage.cli.workloads.follow import INTERRUPTED
from commonage.sdk import relay
from commonage.sdk.errors import ApiError
from commonage.units import quoted

if TYPE_CHECKING:
    from commonage.sdk import AsyncClient
    from commonage.sdk.execs import Exec

_OUT = 1
_CHUNK = 32 * 1024
_CONNECTED = b"connected\n"
_BUSY = ("too-many-commands", "too-many-requests")
_BUSY_PAUSE_S = 0.5
# Text from a workload, including its name, becomes part of the arguments of ssh and of files that shells read.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
_PLAIN_PATH = re.compile(r"[\w./~+-]+")


# --- ssh --------------------------------------------------------------------------------------------------------------


@click.command("ssh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("workload", metavar="ID")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND…]")
@click.option("--stdio", is_flag=True, help="Speak SSH over stdin and stdout: for ProxyCommand.")
@click.option("--config", "as_config", is_flag=True, help="Print lines for ~/.ssh/config, and do not connect.")
@click.option("--ssh-option", "-o", "options", multiple=True, metavar="OPTION", help="Passed to ssh as -o.")
@calls_server
def ssh(
    server: Server, workload: str, command: tuple[str, ...], stdio: bool, as_config: bool, options: tuple[str, ...]
) -> None:
    """Connect to a running workload by SSH. Its image needs the package openssh-server.

    With the lines of `--config` in ~/.ssh/config, ssh, scp, sftp, rsync and VS Code (Remote - SSH) connect to
    `NAME.commonage`.

    \b
    Examples:
      commonage ssh train
      commonage ssh train nvidia-smi
      commonage ssh --config train >> ~/.ssh/config
      rsync -a data/ train.commonage:data/
    """
    if stdio:
        _serve_stdio(server, workload)
    with connect(server) as client:
        found = find_workload(client, workload)
        answer = client.execute(found.id, ["/bin/sh", "-c", relay.USER, "ssh"])
    if answer.exit_code != 0:
        raise Failure(f"{workload} cannot be reached by SSH: {_shown(answer.stderr)}")
    user = answer.stdout.decode(errors="replace").removesuffix("\n")
    if not _USER.fullmatch(user):
        raise Failure(
            f"{workload} cannot be reached by SSH: `id -un` gives no name of a user in it, but {quoted(user)}; "
            "add a user to the image: useradd -m user"
        )
    name = found.name if found.name and _HOST.fullmatch(found.name) else found.id
    if as_config:
        click.echo(_config(server, user, name))
        return
    program = shutil.which("ssh")
    if program is None:
        raise Failure("ssh is not installed; install the OpenSSH client", MISUSED)
    settings = [*_settings(_proxy(server, found.id)), *options]
    arguments = [
        program,
        *(part for one in settings for part in ("-o", one)),
        "-l",
        user,
        "--",
        f"{name}.commonage",
        *command,
    ]
    environment = {**os.environ, "COMMONAGE_TOKEN": server.token or ""}  # not in the arguments, which others can see
    os.execve(program, arguments, environment)  # noqa: S606 (ssh takes over terminal and signals)


def _serve_stdio(server: Server, workload: str) -> None:
    with connect(server) as client:
        workload_id = find_workload(client, workload).id
    command = ["/bin/sh", "-c", relay.SSHD, "ssh", _public_key()]
    try:
        code = asyncio.run(_run(server, workload_id, command))
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.stdout.flush()
    os._exit(code)  # a thread may still wait for input


async def _run(server: Server, workload_id: str, command: Sequence[str]) -> int:
    from commonage.sdk import AsyncClient

    async with AsyncClient(server.url, server.token) as client, client.exec(workload_id, command) as running:
        return await forward(running)


def _key_file() -> Path:
    return credentials_file().parent / "ssh" / "id_ed25519"


def _public_key() -> str:
    """The public key of this command line, created at the first use."""
    key = _key_file()
    if not key.exists():
        maker = shutil.which("ssh-keygen")
        if maker is None:
            raise Failure("ssh-keygen is not installed; install the OpenSSH client", MISUSED)
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = key.with_name(f".new-{os.getpid()}")
        subprocess.run([maker, "-q", "-t", "ed25519", "-N", "", "-C", "commonage", "-f", str(fresh)], check=True)
        fresh.with_name(f"{fresh.name}.pub").replace(key.with_name(f"{key.name}.pub"))
        fresh.replace(key)
    return key.with_name(f"{key.name}.pub").read_text(encoding="ascii").strip()


def _settings(proxy: str) -> list[str]:
    """The workload makes a host key for each connection; HTTPS and the token have identified it before."""
    _public_key()
    return [
        f"ProxyCommand={proxy}",
        f"IdentityFile={_quoted_path(str(_key_file()))}",
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
    ]


def _quoted_path(path: str) -> str:
    escaped = path.replace("%", "%%")
    if _PLAIN_PATH.fullmatch(path):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _proxy(server: Server, workload: str) -> str:
    """A line for a shell, in which ssh replaces `%` and a letter."""
    return shlex.join([*_ourselves(), "ssh", "--stdio", "--url", server.url, workload]).replace("%", "%%")


def _ourselves() -> list[str]:
    program = shutil.which("commonage")
    return [program] if program is not None else [sys.executable, "-m", "commonage"]


def _config(server: Server, user: str, name: str) -> str:
    lines = [one.replace("=", " ", 1) for one in _settings(_proxy(server, name))]
    return "\n  ".join([f"Host {name}.commonage", f"User {user}", *lines])


# --- port-forward -----------------------------------------------------------------------------------------------------


class PortType(click.ParamType[tuple[int, int]]):
    name = "[LOCAL:]PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        local, _, there = str(value).rpartition(":")
        try:
            ports = int(local or there), int(there)
        except ValueError:
            ports = (-1, -1)
        if not (0 <= ports[0] < 65536 and 0 < ports[1] < 65536):
            self.fail(f"{value!r} is no port; write 8080, or 9000:8080 for another port here", param, ctx)
        return ports


@click.command("port-forward")
@click.argument("workload", metavar="ID")
@click.argument("ports", nargs=-1, required=True, type=PortType())
@click.option("--address", default="127.0.0.1", show_default=True, help="Address of this machine to listen at.")
@calls_server
def port_forward(server: Server, workload: str, ports: tuple[tuple[int, int], ...], address: str) -> None:
    """Forward ports of this machine to ports of a running workload, until Ctrl-C.

    LOCAL 0 chooses a free port. The image needs python3 or socat. At most ten connections are open at the same time;
    further ones wait.

    \b
    Examples:
      commonage port-forward train 6006
      commonage port-forward train 9000:8080
    """
    with connect(server) as client:
        workload_id = find_workload(client, workload).id
    with suppress(KeyboardInterrupt):
        asyncio.run(_forward_ports(server, workload_id, ports, address))


async def _forward_ports(server: Server, workload_id: str, ports: Sequence[tuple[int, int]], address: str) -> None:
    from commonage.sdk import AsyncClient

    async with AsyncClient(server.url, server.token) as client:
        listeners = []
        try:
            for local, there in ports:
                carry = _carrier(client, workload_id, there)
                try:
                    listeners.append(await asyncio.start_server(carry, address, local))
                except OSError as error:
                    raise Failure(
                        f"port {local} of {address} cannot be used: {error.strerror}; choose another: "
                        f"`commonage port-forward {workload_id} LOCAL:{there}`",
                        MISUSED,
                    ) from error
                port = listeners[-1].sockets[0].getsockname()[1]
                click.echo(f"Forwarding {address}:{port} to port {there} of {workload_id}. Ctrl-C ends it.")
            sys.stdout.flush()
            await asyncio.gather(*(one.serve_forever() for one in listeners))
        finally:
            for one in listeners:
                one.close()


def _carrier(
    client: AsyncClient, workload_id: str, port: int
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _carry(client, workload_id, port, (reader, writer))
        except ApiError as error:
            click.echo(f"commonage: a connection to port {port} failed: {error}", err=True)
        except OSError:
            pass  # the program on this machine is gone
        finally:
            writer.close()

    return carry


async def _carry(
    client: AsyncClient, workload_id: str, port: int, here: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    command = ["/bin/sh", "-c", relay.PORT, "port-forward", str(port)]
    while True:
        try:
            async with client.exec(workload_id, command) as running:
                await _copy(running, *here, port)
                return
        except ApiError as error:
            if error.code not in _BUSY:
                raise
            await asyncio.sleep(error.retry_after_s or _BUSY_PAUSE_S)


async def _copy(running: Exec, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    async def send() -> None:
        while data := await reader.read(_CHUNK):
            await running.write(data)
        await running.close_stdin()

    sending, said = asyncio.create_task(send()), b""
    try:
        while (chunk := await running.read()) is not None:
            stream, data = chunk
            if stream == _OUT:
                writer.write(data)
                await writer.drain()
            else:
                said = (said + data)[:2000].removeprefix(_CONNECTED)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    if running.exit_code and said:
        click.echo(f"commonage: port {port}: {_shown(said)}", err=True)


def _shown(said: bytes) -> str:
    """Lines of a workload without what a terminal would obey."""
    lines = said.decode(errors="replace").strip().splitlines()
    return "\n".join(
        "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line) for line in lines
    )
