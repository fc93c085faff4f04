"""`commonage user`, and the renaming and removal of users and tenants: a plan first, then its steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli import output
from commonage.cli.connection import Server, as_json, calls_server, connect, prints
from commonage.cli.errors import MISUSED, Failure
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.offboarding import OffboardingOut, OffboardingPlanIn, OffboardingPlanOut, UserOut

F = TypeVar("F", bound=Callable[..., Any])
_POLL_S = 1.0


@click.group
def user() -> None:
    """List, rename and remove users. For admins.

    \b
    Examples:
      commonage user ls
      commonage user show ann
      commonage user rename ann anna
      commonage user remove ann --data archive
    """


def _print_users(users: Sequence[UserOut]) -> None:
    table = output.table("USER", "ROLES", "WORKLOADS", "HOME", "STATE", right=("WORKLOADS", "HOME"))
    for each in users:
        home = "" if each.home_mib is None else output.memory(each.home_mib)
        roles = ", ".join(["admin"] * each.admin + each.roles)
        table.add_row(output.text(each.name), output.text(roles), str(each.live), home, output.text(_state(each)))
    output.console().print(table)


def _state(user: UserOut) -> str:
    found = user.offboarding
    if found is None:
        return "" if user.in_hub else "not in JupyterHub"
    if found.wanted.name != user.name:
        return f"new name of {found.wanted.name}"
    how = f"renamed to {found.wanted.to}" if found.wanted.to else "removed"
    return f"{'' if found.ended_at is not None else 'being '}{how}"


@user.command("ls")
@prints(_print_users)
def list_users(client: Client) -> Sequence[UserOut]:
    """List users with roles, live workloads and the sizes of homes. For admins.

    \b
    Example:
      commonage user ls --json
    """
    return client.users()


def _print_user(user: UserOut) -> None:
    click.echo(f"{user.name}{' (admin)' if user.admin else ''}")
    lines = [
        ("groups", ", ".join(user.groups)),
        ("roles", ", ".join(user.roles)),
        ("live workloads", str(user.live)),
        ("home", "" if user.home_mib is None else output.memory(user.home_mib)),
        ("state", _state(user)),
    ]
    for label, value in lines:
        if value:
            click.echo(f"{label}: {value}")
    if user.offboarding is not None:
        _print_offboarding(user.offboarding)


@user.command("show")
@click.argument("name")
@prints(_print_user)
def show_user(client: Client, name: str) -> UserOut:
    """Show a user: groups, roles, live workloads, home, and a renaming or removal in progress. For admins.

    \b
    Example:
      commonage user show ann
    """
    return client.user(name)


def _options(*, removal: bool) -> Callable[[F], F]:
    """The options of renamings, or of removals."""
    runs = "stop", "finish", "hand-over"
    meaning = "Live jobs and services: stop them, let them finish, or requeue them for " + (
        "the heir." if removal else "the new name."
    )
    options = [
        click.option("--workloads", type=click.Choice(runs), default="stop", show_default=True, help=meaning),
        click.option("--keep-account", is_flag=True, help="Leave the user or group in JupyterHub as it is."),
        click.option("--plan", "only_plan", is_flag=True, help="Only show the plan."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
        click.option("--no-wait", is_flag=True, help="Do not wait for the last step."),
    ]
    if removal:
        data = "hand-over", "archive", "keep", "delete"
        options[1:1] = [
            click.option(
                "--data",
                type=click.Choice(data),
                default="archive",
                show_default=True,
                help="Home and folders of volumes: give to the heir, pack into archives, keep, or delete.",
            ),
            click.option(
                "--to",
                "heir",
                default="",
                metavar="NAME",
                help="Heir: the user or tenant who gets the workloads and data that are handed over.",
            ),
        ]

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@user.command("rename")
@click.argument("name")
@click.argument("new_name")
@_options(removal=False)
@as_json
@calls_server
def rename_user(server: Server, name: str, new_name: str, **options: Any) -> None:
    """Rename a user. Home, volumes, roles, queued workloads, usage and history get the new name. For admins.

    Shows a plan, and asks for confirmation. If you interrupt the command, the server continues.

    \b
    Examples:
      commonage user rename ann anna --plan
      commonage user rename ann anna --workloads finish
    """
    _offboard(server, {"subject": "user", "change": "rename", "name": name, "to": new_name}, **options)


@user.command("remove")
@click.argument("name")
@_options(removal=True)
@as_json
@calls_server
def remove_user(server: Server, name: str, **options: Any) -> None:
    """Remove a user: workloads, tokens, roles and home are treated as planned. Usage records are kept. For admins.

    The name cannot be used to sign in until it is released.

    \b
    Examples:
      commonage user remove ann --plan
      commonage user remove ann --workloads hand-over --data hand-over --to bob
    """
    _offboard(server, {"subject": "user", "change": "remove", "name": name}, **options)


@click.command("rename")
@click.argument("name")
@click.argument("new_name")
@_options(removal=False)
@as_json
@calls_server
def rename_tenant(server: Server, name: str, new_name: str, **options: Any) -> None:
    """Rename a tenant. Quota, roles, volumes, group, usage and history get the new name. For admins.

    \b
    Example:
      commonage tenant rename optics photonics --workloads hand-over
    """
    _offboard(server, {"subject": "tenant", "change": "rename", "name": name, "to": new_name}, **options)


@click.command("remove")
@click.argument("name")
@_options(removal=True)
@as_json
@calls_server
def remove_tenant(server: Server, name: str, **options: Any) -> None:
    """Remove a tenant: workloads, volumes, images and roles are treated as planned. Usage records are kept. For admins.

    \b
    Example:
      commonage tenant remove optics --workloads finish --data archive
    """
    _offboard(server, {"subject": "tenant", "change": "remove", "name": name}, **options)


@user.command("release")
@click.argument("name")
@as_json
@calls_server
def release_user(server: Server, name: str, as_json: bool) -> None:
    """Permit others to use the name of a renamed or removed user. For admins.

    Data that was kept under the name, such as a home, becomes theirs.

    \b
    Example:
      commonage user release ann
    """
    _release(server, "user", name, as_json)


@click.command("release")
@click.argument("name")
@as_json
@calls_server
def release_tenant(server: Server, name: str, as_json: bool) -> None:
    """Permit a new tenant with the name of a renamed or removed one. For admins.

    \b
    Example:
      commonage tenant release optics
    """
    _release(server, "tenant", name, as_json)


def _release(server: Server, subject: str, name: str, as_json: bool) -> None:
    with connect(server) as client:
        found = [
            one for one in client.offboardings()
            if (one.wanted.subject, one.wanted.name) == (subject, name) and one.released_at is None
        ]  # fmt: skip
        if not found:
            raise Failure(f"the name of {subject} {name!r} is not retired. Nothing has to be released.", MISUSED)
        released = [client.release_name(one.id) for one in found]
    if as_json:
        output.print_json(released[0])
    else:
        click.echo(f"Released: others may be {subject} {name}.")


def _offboard(
    server: Server, wanted: dict[str, Any], *, only_plan: bool, yes: bool, no_wait: bool, as_json: bool, **options: Any
) -> None:
    from commonage.wire.offboarding import OffboardingPlanIn

    ask = OffboardingPlanIn(**wanted, **options)
    with connect(server) as client:
        if only_plan:
            plan = client.plan_offboarding(ask)
            _show(plan, as_json)
            return
        begun = _repeated(client, ask) or _begin(client, ask, yes=yes, as_json=as_json)
        done = begun if no_wait else _wait(client, begun, quiet=as_json)
    if as_json:
        output.print_json(done)
    elif done.ended_at is not None:
        click.echo("Done.")
    else:
        click.echo(f"Started: {done.id}. The server continues by itself.")


def _repeated(client: Client, ask: OffboardingPlanIn) -> OffboardingOut | None:
    """The same change, if it was begun before and its name is still retired: it is followed, not begun again."""
    wanted = ask.model_dump()
    same = (one for one in client.offboardings() if one.wanted.model_dump() == wanted and one.released_at is None)
    return next(same, None)


def _begin(client: Client, ask: OffboardingPlanIn, *, yes: bool, as_json: bool) -> OffboardingOut:
    """Show the plan, ask, and begin. A plan that changed meanwhile is shown, and not carried out."""
    from commonage.wire.offboarding import OffboardingIn

    plan = client.plan_offboarding(ask)
    if not as_json:
        _show(plan, as_json=False)
    if plan.obstacles:
        texts = " ".join(one.message for one in plan.obstacles)
        raise Failure(f"the plan has obstacles: {texts}", MISUSED)
    if not yes:
        _confirm()
    try:
        return client.begin_offboarding(OffboardingIn(**ask.model_dump(), version=plan.version))
    except ApiError as error:
        if error.code == "version-mismatch":
            click.echo("\n".join(plan_lines(client.plan_offboarding(ask))), err=True)
        raise


def _show(plan: OffboardingPlanOut, as_json: bool) -> None:
    if as_json:
        output.print_json(plan)
    else:
        click.echo("\n".join(plan_lines(plan)))


def plan_lines(plan: OffboardingPlanOut) -> list[str]:
    wanted = plan.wanted
    what = f"{wanted.subject} {wanted.name}"
    lines = [f"Rename {what} to {wanted.to}:" if wanted.to else f"Remove {what}:"]
    lines += [f"  {number}. {one.message}" for number, one in enumerate(plan.items, 1)]
    return [*lines, *(f"  ! {one.message}" for one in plan.obstacles)]


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise Failure("this changes names and data. Read the plan, and repeat it with --yes.", MISUSED)
    click.confirm("Do this?", abort=True, err=True)


def _wait(client: Client, begun: OffboardingOut, *, quiet: bool) -> OffboardingOut:
    """Follow the steps until the last one is done."""
    found, told = begun, ("", 0)
    while found.ended_at is None:
        now = (found.last_error, len(found.done))
        if now != told and not quiet:
            waits = f": {found.last_error}" if found.last_error else ""
            click.echo(f"step {len(found.done) + 1}: {found.next_step}{waits}", err=True)
        told = now
        time.sleep(_POLL_S)
        found = client.offboarding(begun.id)
    return found


def _print_offboarding(found: OffboardingOut) -> None:
    click.echo(f"steps done: {', '.join(found.done) or 'none'}")
    if found.ended_at is None:
        click.echo(f"next step: {found.next_step}")
    if found.last_error:
        click.echo(f"last error: {found.last_error}")
