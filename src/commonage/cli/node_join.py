"""`commonage node join|leave|rm|token|template`: how nodes come and go."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.failures import MISUSED, Failure
from commonage.units import UnitError, parse_duration

if TYPE_CHECKING:
    from commonage.wire.joining import JoinTokenOut

F = TypeVar("F", bound=Callable[..., Any])

_SHORTEST_S = 60
_LONGEST_S = 7 * 86400
_FOR = click.option(
    "--for", "how_long", default="1h", show_default=True, metavar="TIME", help="How long it is good for."
)

_STEPS = (
    ("--share", "SOURCE", "Shared folder: SERVER:/FOLDER for NFS, or 'TYPE SOURCE OPTIONS'."),
    ("--scratch", "SIZE", "tmpfs at /scratch: 50% (of the memory, as usual), 64G, or off."),
    ("--nvidia", "ask|install|skip", "What to do about a GPU without driver or container toolkit."),
    ("--driver", "PACKAGE", "The driver's package, if not the distribution's usual one."),
    ("--mirror", "SOURCE", "Install from there alone: file:/FOLDER, or a line for sources.list."),
    ("--gpus", "WHICH", "GPUs on offer: auto, none, or simulated:1x24GiB."),
    ("--vram", "MIB", "Memory of all GPUs together, if not what the driver says."),
    ("--address", "ADDRESS", "The node's address in the Swarm, if not the one towards the manager."),
    ("--disk", "GIB", "How much must be free for images and containers."),
    ("--label", "NAME=VALUE", "What else is to be known of the node; may be given again."),
)
"""The options that the node's own program takes, as it has them (`commonage.agent.join`)."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to sign in by SSH; empty is as SSH does it."""

    key: str = ""
    config: str = ""
    sudo_password: str = ""


def _signs_in(verb: F) -> F:
    """Give a verb the options of SSH; it gets an `access` instead."""

    @wraps(verb)
    def with_access(*args: Any, key: str | None, ssh_config: str | None, ask_sudo: bool, **rest: Any) -> Any:
        password = str(click.prompt("Password for sudo", hide_input=True, err=True)) if ask_sudo else ""
        return verb(*args, access=Access(key or "", ssh_config or "", password), **rest)

    file = click.Path(exists=True, dir_okay=False)
    for option in (
        click.option("--ask-sudo", is_flag=True, help="Ask for the password that sudo wants there."),
        click.option("--ssh-config", type=file, help="As `ssh -F` takes it."),
        click.option("--key", type=file, help="Private key to sign in with."),
    ):
        with_access = option(with_access)
    return with_access  # type: ignore[return-value]  # click's options keep the signature


def _has_steps(verb: F) -> F:
    """Give a verb the options of the steps; it gets a list of `options` for the node's program instead."""
    names = [name.removeprefix("--") for name, _, _ in _STEPS]

    @wraps(verb)
    def with_steps(*args: Any, **rest: Any) -> Any:
        given = {name: rest.pop(name) for name in names}
        options = [f"--{name}={value}" for name, values in given.items() for value in values]
        return verb(*args, options=options, **rest)

    for name, metavar, says in reversed(_STEPS):
        with_steps = click.option(name, metavar=metavar, help=says, multiple=True)(with_steps)
    return with_steps  # type: ignore[return-value]  # likewise


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST…")
@_signs_in
@click.option("--plan", is_flag=True, help="Only show what would be done.")
@click.option("--force", is_flag=True, help="Restart Docker, if need be, also while containers run there: they end.")
@_has_steps
@calls_server
def join(server: Server, hosts: tuple[str, ...], access: Access, options: list[str], **flags: bool) -> None:
    """Have nodes join over SSH, as root or as one who may use sudo. The same again changes nothing. For admins.

    \b
    Example:
      commonage node join admin@gpu-7 --plan
      commonage node join root@10.0.0.7 root@10.0.0.8 --share nas:/commonage
    """
    _check(hosts)
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
        raise Failure("not all have joined; what is in the way stands above")


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="[USER@]HOST…")
@_signs_in
@click.option("--force", is_flag=True, help="Also while workloads run there: they end.")
def leave(hosts: tuple[str, ...], access: Access, force: bool) -> None:
    """Take nodes out of their site, over SSH.

    Agent, certificates and the place in the Swarm go, Docker and drivers stay. Refused while workloads run there: drain
    them first. The site then knows the node no more; it may join again.

    \b
    Example:
      commonage node drain --requeue gpu-7
      commonage node leave admin@gpu-7
    """
    _check(hosts)
    command = ["/usr/local/sbin/commonage-agent", "leave", *(["--force"] if force else [])]
    # One that never joined has no such program.
    guard = 'test -x "$1" || { echo "Nothing to do: no agent is here."; exit 0; }; exec "$@"'
    if _send(hosts, ["sh", "-c", guard, "sh", *command], access) != 0:
        raise Failure("not all have left; what is in the way stands above")


def _send(hosts: Sequence[str], command: Sequence[str], access: Access, files: Mapping[str, str] | None = None) -> int:
    from commonage.cli.over_ssh import Errand, send

    return send(
        Errand(list(dict.fromkeys(hosts)), command, files or {}, access.key, access.config, access.sudo_password)
    )


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Of a lost node, on your word that nothing runs there any more.")
@as_json
@calls_server
def rm(server: Server, name: str, force: bool, as_json: bool) -> None:
    """Forget a node, and let it in no more. For admins.

    It must be drained, faulty or lost, and nothing may run there. Its certificate is revoked, its login to the
    registry, all join tokens made so far, and the Swarm's token for workers; it may join again with a new token. One
    that left by `commonage node leave` is forgotten already.

    \b
    Example:
      commonage node rm gpu-7
    """
    from commonage.cli.node import find

    with connect(server) as client:
        # One that is known no more, or never reported, may still have a certificate.
        site, _, node = name.rpartition("/")
        if any(name in (one.name, f"{one.site}/{one.name}") for one in client.nodes()):
            site, node = find(client, name)
        done = client.remove_node(site or "local", node, force=force)
    if as_json:
        show.print_json({"done": list(done)})
    else:
        for line in done:
            click.echo(line)


@click.command()
@_FOR
@click.option("--revoke", is_flag=True, help="Instead of making one, end all made so far, and the Swarm's own.")
@as_json
@calls_server
def token(server: Server, how_long: str, revoke: bool, as_json: bool) -> None:
    """Make a token with which nodes join, and show the command. For admins.

    \b
    Example:
      commonage node token --for 30m
      commonage node token --revoke
    """
    with connect(server) as client:
        if revoke:
            done = client.revoke_join_tokens()
            if as_json:
                show.print_json({"done": list(done)})
            else:
                click.echo("\n".join(done))
            return
        made = client.join_token(for_s=_seconds(how_long))
    if as_json:
        show.print_json(made)
        return
    for line in commands(made):
        click.echo(line)


def commands(made: JoinTokenOut) -> Sequence[str]:
    """The command for the node, and the token apart from it: everybody there can read a command line."""
    return [
        f"On the node that is to join, until {show.clock(made.expires_at)}:",
        "",
        made.command,
        "",
        "It asks for the token (or takes it by --token-file FILE, where - is the standard input):",
        made.token,
    ]


@click.command()
@click.option("--cloud-init/--shell", "cloud_init", default=True, help="Cloud-init user data, or a shell script.")
@_FOR
@_has_steps
@calls_server
def template(server: Server, cloud_init: bool, how_long: str, options: list[str]) -> None:
    """Print what has a cloud's new machine join at its first start. It holds a token. For admins.

    \b
    Example:
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
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise Failure(f"--for {text}: a join token is valid for 1 minute to 7 days. Write it like 1h or 2d.", MISUSED)
    return seconds


def _check(hosts: Sequence[str]) -> None:
    from commonage.cli.over_ssh import split_host

    for host in hosts:
        try:
            split_host(host)
        except ValueError as error:
            raise Failure(str(error), MISUSED) from None
