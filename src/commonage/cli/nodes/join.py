"""`commonage node join|leave|rm|token|template`: add and remove nodes."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.errors import MISUSED, Failure
from commonage.units import UnitError, parse_duration

if TYPE_CHECKING:
    from commonage.wire.joining import JoinTokenOut

F = TypeVar("F", bound=Callable[..., Any])

_MIN_S = 60
_MAX_S = 7 * 86400
_VALIDITY = click.option(
    "--for", "how_long", default="1h", show_default=True, metavar="TIME", help="How long the token is valid."
)

_JOIN_OPTIONS = (
    ("--share", "SOURCE", "Shared folder: SERVER:/FOLDER for NFS, or 'TYPE SOURCE OPTIONS'."),
    ("--scratch", "SIZE", "tmpfs at /scratch: 50% of the memory (default), 64G, or off."),
    ("--nvidia", "ask|install|skip", "What to do if the GPU driver or the container toolkit is missing."),
    ("--driver", "PACKAGE", "Package of the driver, if not the default of the distribution."),
    ("--mirror", "SOURCE", "Install only from this source: file:/FOLDER, or a line for sources.list."),
    ("--gpus", "WHICH", "GPUs to offer: auto, none, or simulated:1x24GiB."),
    ("--vram", "MIB", "VRAM of all GPUs together, if not as the driver reports."),
    ("--address", "ADDRESS", "Address of the node in the Swarm, if not the one towards the manager."),
    ("--disk", "GIB", "Disk space that must be free for images and containers."),
    ("--label", "NAME=VALUE", "Label of the node. Repeatable."),
)
"""Options that are passed to the join program on the node (`commonage.agent.join`)."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to sign in by SSH. Empty values are the defaults of SSH."""

    key: str = ""
    config: str = ""
    sudo_password: str = ""


def _ssh_options(command: F) -> F:
    """Add the options of SSH. The command gets an `access` instead."""

    @wraps(command)
    def with_access(*args: Any, key: str | None, ssh_config: str | None, ask_sudo: bool, **rest: Any) -> Any:
        password = str(click.prompt("Password for sudo", hide_input=True, err=True)) if ask_sudo else ""
        return command(*args, access=Access(key or "", ssh_config or "", password), **rest)

    file = click.Path(exists=True, dir_okay=False)
    for option in (
        click.option("--ask-sudo", is_flag=True, help="Ask for the sudo password of the hosts."),
        click.option("--ssh-config", type=file, help="Configuration file, as for `ssh -F`."),
        click.option("--key", type=file, help="Private key to sign in with."),
    ):
        with_access = option(with_access)
    return with_access  # type: ignore[return-value]  # click's options keep the signature


def _join_options(command: F) -> F:
    """Add the options of the join program. The command gets them as the list `options` instead."""
    names = [name.removeprefix("--") for name, _, _ in _JOIN_OPTIONS]

    @wraps(command)
    def with_options(*args: Any, **rest: Any) -> Any:
        given = {name: rest.pop(name) for name in names}
        options = [f"--{name}={value}" for name, values in given.items() for value in values]
        return command(*args, options=options, **rest)

    for name, metavar, text in reversed(_JOIN_OPTIONS):
        with_options = click.option(name, metavar=metavar, help=text, multiple=True)(with_options)
    return with_options  # type: ignore[return-value]  # likewise


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST…")
@_ssh_options
@click.option("--plan", is_flag=True, help="Only show the steps.")
@click.option("--force", is_flag=True, help="Restart Docker if necessary, even if running containers end.")
@_join_options
@calls_server
def join(server: Server, hosts: tuple[str, ...], access: Access, options: list[str], **flags: bool) -> None:
    """Let machines join as nodes over SSH, as root or with sudo. A second run changes nothing. For admins.

    \b
    Examples:
      commonage node join admin@gpu-7 --plan
      commonage node join root@10.0.0.7 root@10.0.0.8 --share nas:/commonage
    """
    _check_hosts(hosts)
    with connect(server) as client:
        kit, token = client.join_kit(), client.join_token()
    files = {
        "join.sh": base64.b64encode(kit.script.encode()).decode(),
        "bundle.tar.gz": kit.bundle,
        "token": base64.b64encode(token.token.encode()).decode(),
    }
    command = ["sh", "join.sh", "--token-file", "token", "--bundle", "bundle.tar.gz"]
    command += [f"--{name}" for name, given in flags.items() if given]
    if _send(hosts, [*command, *options], access, files) != 0:
        raise Failure("not all machines have joined. See the messages above.")


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST…")
@_ssh_options
@click.option("--force", is_flag=True, help="Leave even if running workloads end.")
def leave(hosts: tuple[str, ...], access: Access, force: bool) -> None:
    """Remove nodes from their site over SSH.

    Removes the agent, its certificates and the membership of the Swarm; keeps Docker and drivers. Refused while
    workloads run on the node: drain it first. The site forgets the node, and the machine can join again.

    \b
    Examples:
      commonage node drain --requeue gpu-7
      commonage node leave admin@gpu-7
    """
    _check_hosts(hosts)
    command = ["/usr/local/sbin/commonage-agent", "leave", *(["--force"] if force else [])]
    # A machine that never joined does not have this program.
    guard = 'test -x "$1" || { echo "Nothing to do: no agent is here."; exit 0; }; exec "$@"'
    if _send(hosts, ["sh", "-c", guard, "sh", *command], access) != 0:
        raise Failure("not all nodes have left. See the messages above.")


def _send(hosts: Sequence[str], command: Sequence[str], access: Access, files: Mapping[str, str] | None = None) -> int:
    from commonage.cli.nodes.ssh import Task, send

    return send(Task(list(dict.fromkeys(hosts)), command, files or {}, access.key, access.config, access.sudo_password))


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove a lost node. Use it only if nothing runs there any more.")
@as_json
@calls_server
def rm(server: Server, name: str, force: bool, as_json: bool) -> None:
    """Remove a node, and refuse further connections from it. For admins.

    The node must be drained, faulty or lost, without workloads. Revokes its certificate, its login to the registry, all
    join tokens, and the worker token of the Swarm. The machine can join again with a new token. A node that left by
    `commonage node leave` is removed already.

    \b
    Example:
      commonage node rm gpu-7
    """
    from commonage.cli.nodes.node import find

    with connect(server) as client:
        # A node that is unknown, or never reported, may still have a certificate.
        site, _, node = name.rpartition("/")
        if any(name in (one.name, f"{one.site}/{one.name}") for one in client.nodes()):
            site, node = find(client, name)
        done = client.remove_node(site or "local", node, force=force)
    if as_json:
        output.print_json({"done": list(done)})
    else:
        for line in done:
            click.echo(line)


@click.command()
@_VALIDITY
@click.option(
    "--revoke", is_flag=True, help="Revoke all join tokens, and the worker token of the Swarm, instead of creating one."
)
@as_json
@calls_server
def token(server: Server, how_long: str, revoke: bool, as_json: bool) -> None:
    """Create a join token, and show the command for the machine. For admins.

    \b
    Examples:
      commonage node token --for 30m
      commonage node token --revoke
    """
    with connect(server) as client:
        if revoke:
            done = client.revoke_join_tokens()
            if as_json:
                output.print_json({"done": list(done)})
            else:
                click.echo("\n".join(done))
            return
        made = client.join_token(for_s=_seconds(how_long))
    if as_json:
        output.print_json(made)
        return
    for line in commands(made):
        click.echo(line)


def commands(made: JoinTokenOut) -> Sequence[str]:
    """The command, and the token separately: all users of a machine can read a command line."""
    return [
        f"Run this on the machine that joins, before {output.clock(made.expires_at)}:",
        "",
        made.command,
        "",
        "It asks for this token, or reads it from --token-file FILE (- is stdin):",
        made.token,
    ]


@click.command()
@click.option(
    "--cloud-init/--shell",
    "cloud_init",
    default=True,
    help="Print cloud-init user data, or a shell script.  [default: cloud-init]",
)
@_VALIDITY
@_join_options
@calls_server
def template(server: Server, cloud_init: bool, how_long: str, options: list[str]) -> None:
    """Print a script with which a new cloud machine joins at its first start. It contains a token. For admins.

    \b
    Examples:
      commonage node template --for 1d > user-data
      commonage node template --share nas:/commonage > user-data
    """
    with connect(server) as client:
        made = client.join_token(for_s=_seconds(how_long), cloud_init=cloud_init, options=options)
        script = "" if cloud_init else client.join_kit().script
    if cloud_init:
        click.echo(made.user_data or "", nl=False)
    else:
        words = shlex.join(["--token-file", "-", *options])
        call = f"\nmain {words} <<'END_OF_TOKEN'\n{made.token}\nEND_OF_TOKEN\n"
        click.echo(script.replace('\nmain "$@"\n', call), nl=False)


def _seconds(text: str) -> int:
    try:
        seconds = parse_duration(text, "--for")
    except UnitError as error:
        raise Failure(str(error), MISUSED) from None
    if not _MIN_S <= seconds <= _MAX_S:
        raise Failure(f"--for {text}: a join token is valid for 1 minute to 7 days. Write it like 1h or 2d.", MISUSED)
    return seconds


def _check_hosts(hosts: Sequence[str]) -> None:
    from commonage.cli.nodes.ssh import split_host

    for host in hosts:
        try:
            split_host(host)
        except ValueError as error:
            raise Failure(str(error), MISUSED) from None
