"""`commonage node join|leave|rm|token|template`: add and remove nodes."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli import output
from commonage.cli.connection import Server, calls_server, connect, prints
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.nodes.ssh import Task, send, split_host
from commonage.units import UnitError, parse_duration

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.nodes import JoinTokenOut

F = TypeVar("F", bound=Callable[..., Any])

VALIDITY = click.option(
    "--for", "how_long", default="1h", show_default=True, metavar="TIME", help="How long the token is valid."
)

_SITE = click.option(
    "--site",
    default="local",
    show_default=True,
    metavar="SITE",
    help="Site to join (`commonage site ls`).",
)
_JOIN_OPTIONS = (
    ("--share", "SOURCE", "Shared folder: SERVER:/FOLDER for NFS, or 'TYPE SOURCE OPTIONS'."),
    ("--scratch", "SIZE", "tmpfs at /scratch: 50% of the memory (default), 64G, or off."),
    ("--nvidia", "ask|install|skip", "Action if the GPU driver or the container toolkit is missing (default: ask)."),
    ("--driver", "PACKAGE", "Package of the driver, if not the default of the distribution."),
    ("--mirror", "SOURCE", "Install only from this source: file:/FOLDER, or a line for sources.list."),
    ("--gpus", "WHICH", "GPUs to offer: auto (default), none, or simulated:1x24GiB."),
    ("--vram", "MIB", "Total VRAM of all GPUs in MiB (default: as the driver reports)."),
    ("--address", "ADDRESS", "Address of the node in the Swarm (default: the one that reaches the manager)."),
    ("--disk", "GIB", "Disk space in GiB that must be free for images and containers (default: 10)."),
    ("--label", "NAME=VALUE", "Label of the node. Repeatable."),
)
"""Options that are passed to the join program on the node (`commonage.agent.join`)."""


def _over_ssh(command: F) -> F:
    """Add the hosts and the options of SSH. The command gets a `task` for these hosts instead."""

    @wraps(command)
    def with_task(
        *args: Any, hosts: tuple[str, ...], key: str | None, ssh_config: str | None, ask_sudo: bool, **rest: Any
    ) -> Any:
        for host in hosts:
            try:
                split_host(host)
            except ValueError as error:
                raise Failure(str(error), MISUSED) from None
        password = str(click.prompt("Password for sudo", hide_input=True, err=True)) if ask_sudo else ""
        task = Task(list(dict.fromkeys(hosts)), key=key or "", config=ssh_config or "", sudo_password=password)
        return command(*args, task=task, **rest)

    file = click.Path(exists=True, dir_okay=False)
    for option in (
        click.option("--ask-sudo", is_flag=True, help="Ask for the sudo password of the hosts."),
        click.option("--ssh-config", type=file, help="Configuration file, as for `ssh -F`."),
        click.option("--key", type=file, help="Private key to sign in with."),
        click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST…"),
    ):
        with_task = option(with_task)
    return with_task  # type: ignore[return-value]  # click's options keep the signature


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
@_over_ssh
@click.option("--plan", is_flag=True, help="Only show the steps.")
@click.option("--force", is_flag=True, help="Restart Docker if necessary, even if running containers end.")
@_SITE
@_join_options
@calls_server
def join(server: Server, task: Task, site: str, options: list[str], **flags: bool) -> None:
    """Let machines join as nodes over SSH, as root or with sudo. Joining a node again changes nothing. For admins.

    \b
    Examples:
      commonage node join admin@gpu-7 --plan
      commonage node join root@10.0.0.7 root@10.0.0.8 --share nas:/commonage
      commonage node join root@10.4.0.7 --site clinic
    """
    with connect(server) as client:
        kit, token = client.join_kit(site), client.join_token(site=site)
    files = {
        "join.sh": base64.b64encode(kit.script.encode()).decode(),
        "bundle.tar.gz": kit.bundle,
        "token": base64.b64encode(token.token.encode()).decode(),
    }
    command = ["sh", "join.sh", "--token-file", "token", "--bundle", "bundle.tar.gz"]
    command += [f"--{name}" for name, given in flags.items() if given]
    if send(replace(task, command=[*command, *options], files=files)) != 0:
        raise Failure("not all machines have joined. See the messages above.")


@click.command()
@_over_ssh
@click.option("--force", is_flag=True, help="Leave even if running workloads end.")
def leave(task: Task, force: bool) -> None:
    """Remove nodes from their site over SSH.

    Removes the agent, its certificates and the membership of the Swarm; keeps Docker and drivers. Refused while
    workloads run on the node: drain it first. The site forgets the node, and the machine can join again.

    \b
    Examples:
      commonage node drain --requeue gpu-7
      commonage node leave admin@gpu-7
    """
    command = ["/usr/local/sbin/commonage-agent", "leave", *(["--force"] if force else [])]
    # A machine that never joined does not have this program.
    guard = 'test -x "$1" || { echo "Nothing to do: no agent is here."; exit 0; }; exec "$@"'
    if send(replace(task, command=["sh", "-c", guard, "sh", *command])) != 0:
        raise Failure("not all nodes have left. See the messages above.")


def _print_lines(done: dict[str, list[str]]) -> None:
    click.echo("\n".join(done["done"]))


@click.command()
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="Remove a lost node even if workloads may still run there. First make sure that none runs.",
)
@prints(_print_lines)
def rm(client: Client, name: str, force: bool) -> dict[str, list[str]]:
    """Remove a node, and refuse further connections from it. For admins.

    The node must be drained, faulty or lost, without workloads. Revokes its certificate, its login to the registry, all
    join tokens, and the worker token of the Swarm. The machine can join again with a new token. A node that left by
    `commonage node leave` is removed already.

    \b
    Example:
      commonage node rm gpu-7
    """
    from commonage.cli.nodes.node import find

    # A node that is unknown, or never reported, may still have a certificate.
    site, _, node_name = name.rpartition("/")
    if any(name in (node.name, f"{node.site}/{node.name}") for node in client.nodes()):
        node = find(client, name)
        site, node_name = node.site, node.name
    return {"done": list(client.remove_node(site or "local", node_name, force=force))}


def _print_token(token: JoinTokenOut | dict[str, list[str]]) -> None:
    if isinstance(token, dict):
        _print_lines(token)
    else:
        click.echo("\n".join(commands(token)))


@click.command()
@VALIDITY
@click.option(
    "--revoke", is_flag=True, help="Revoke all join tokens, and the worker token of the Swarm, instead of creating one."
)
@_SITE
@prints(_print_token)
def token(client: Client, how_long: str, revoke: bool, site: str) -> JoinTokenOut | dict[str, list[str]]:
    """Create a join token, and show the command for the machine. For admins.

    \b
    Examples:
      commonage node token --for 30m
      commonage node token --site clinic
      commonage node token --revoke
    """
    if revoke:
        return {"done": list(client.revoke_join_tokens(site))}
    return client.join_token(site=site, for_s=seconds_of(how_long))


def commands(token: JoinTokenOut) -> Sequence[str]:
    """The command, and the token separately: all users of a machine can read a command line."""
    return [
        f"Run this on the machine that joins, before {output.clock(token.expires_at)}:",
        "",
        token.command,
        "",
        "It asks for this token, or reads it from --token-file FILE (- is stdin):",
        token.token,
    ]


@click.command()
@click.option(
    "--cloud-init/--shell",
    "cloud_init",
    default=True,
    help="Print cloud-init user data, or a shell script.  [default: cloud-init]",
)
@VALIDITY
@_SITE
@_join_options
@calls_server
def template(server: Server, cloud_init: bool, how_long: str, site: str, options: list[str]) -> None:
    """Print a script with which a new cloud machine joins at its first start. It contains a token. For admins.

    \b
    Examples:
      commonage node template --for 1d > user-data
      commonage node template --share nas:/commonage > user-data
    """
    with connect(server) as client:
        token = client.join_token(site=site, for_s=seconds_of(how_long), cloud_init=cloud_init, options=options)
        script = "" if cloud_init else client.join_kit(site).script
    if cloud_init:
        click.echo(token.user_data or "", nl=False)
    else:
        words = shlex.join(["--token-file", "-", *options])
        call = f"\nmain {words} <<'END_OF_TOKEN'\n{token.token}\nEND_OF_TOKEN\n"
        click.echo(script.replace('\nmain "$@"\n', call), nl=False)


def seconds_of(text: str) -> int:
    try:
        seconds = parse_duration(text, "--for")
    except UnitError as error:
        raise Failure(str(error), MISUSED) from None
    if not 60 <= seconds <= 7 * 86400:
        raise Failure(f"--for {text}: a join token is valid for 1 minute to 7 days. Write it like 1h or 2d.", MISUSED)
    return seconds
