"""The table of all commands, and the groups that import one, run it and report its errors.

To add a command, write its file and add a row to COMMANDS. Commands that need the server (`up`, `token`, …) are in
`commonage.server.commands`. The table names modules as text, because the command line does not import the server.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from commonage import __version__
from commonage.cli.errors import MISUSED, Failure, ServerRefused
from commonage.sdk.errors import ApiError


class Row(NamedTuple):
    """The place of a command, its help in `commonage --help`, and the section there."""

    place: str
    help: str
    section: str


WORKLOADS, CATALOGUE, NODES = "Workloads", "Environments and data", "Nodes"
USERS, PLATFORM, SERVER = "Tenants and account", "Platform", "Server (on its own machine)"

COMMANDS: dict[str, Row] = {
    "run": Row("commonage.cli.workloads.run:run", "Run a command as a job and follow it.", WORKLOADS),
    "profile": Row("commonage.cli.workloads.profile:profile", "Measure a command and suggest a request.", WORKLOADS),
    "submit": Row("commonage.cli.workloads.job_file:submit", "Submit the workloads of a job file.", WORKLOADS),
    "ps": Row("commonage.cli.workloads.ps:ps", "List workloads.", WORKLOADS),
    "logs": Row("commonage.cli.workloads.manage:logs", "Show the log of a workload.", WORKLOADS),
    "attach": Row("commonage.cli.workloads.manage:attach", "Follow a workload until it ends.", WORKLOADS),
    "exec": Row("commonage.cli.workloads.exec:exec_", "Run a command inside a running workload.", WORKLOADS),
    "ssh": Row("commonage.cli.workloads.ssh:ssh", "Connect to a running workload by SSH.", WORKLOADS),
    "port-forward": Row(
        "commonage.cli.workloads.ssh:port_forward", "Forward local ports to a running workload.", WORKLOADS
    ),
    "explain": Row(
        "commonage.cli.workloads.manage:explain",
        "Explain why a workload waits, or whether a request can start.",
        WORKLOADS,
    ),
    "extend": Row("commonage.cli.workloads.manage:extend", "Let a workload run for longer.", WORKLOADS),
    "release-gpu": Row(
        "commonage.cli.workloads.manage:release_gpu", "Start a session again without its GPU.", WORKLOADS
    ),
    "stop": Row("commonage.cli.workloads.manage:stop", "Stop workloads.", WORKLOADS),
    "cron-job": Row(
        "commonage.cli.workloads.cron_job:cron_job", "List, suspend, trigger and remove jobs that repeat.", WORKLOADS
    ),
    "environment": Row(
        "commonage.cli.environment:environment", "List, show, build and remove environments.", CATALOGUE
    ),
    "image": Row("commonage.cli.catalogue:image", "Build, push, list and remove images.", CATALOGUE),
    "volume": Row("commonage.cli.catalogue:volume", "List volumes.", CATALOGUE),
    "data": Row("commonage.cli.data:data", "List, upload, download and remove files of homes and volumes.", CATALOGUE),
    "material": Row("commonage.cli.material:material", "List, sync and reset materials.", CATALOGUE),
    "top": Row("commonage.cli.workloads.ps:top", "Watch nodes, GPUs and workloads.", NODES),
    "node": Row("commonage.cli.nodes.node:node", "List, join, drain and remove nodes.", NODES),
    "node-pool": Row("commonage.cli.nodes.node:node_pool", "List node pools of clouds.", NODES),
    "site": Row("commonage.cli.site:site", "List, invite, join, revoke and remove sites elsewhere.", NODES),
    "class": Row("commonage.cli.classes:classes", "List, set and remove classes, and write to their students.", USERS),
    "reservation": Row("commonage.cli.reservation:reservation", "List, add and remove reservations.", NODES),
    "tenant": Row("commonage.cli.tenant:tenant", "List, rename and remove tenants.", USERS),
    "user": Row("commonage.cli.user:user", "List, rename and remove users.", USERS),
    "quota": Row("commonage.cli.tenant:quota", "Show quotas: used, limit and remaining.", USERS),
    "usage": Row("commonage.cli.tenant:usage", "Show usage and cost.", USERS),
    "info": Row("commonage.cli.login:info", "Show the server and your account.", USERS),
    "login": Row("commonage.cli.login:login", "Save a token for this command line.", USERS),
    "completion": Row("commonage.cli.login:completion", "Print the completion script for your shell.", USERS),
    "plan": Row("commonage.cli.resources.apply:plan", "Preview the changes of `apply`.", PLATFORM),
    "apply": Row("commonage.cli.resources.apply:apply", "Apply files of resources.", PLATFORM),
    "diff": Row("commonage.cli.resources.apply:diff", "Compare the server with files of resources.", PLATFORM),
    "export": Row("commonage.cli.resources.apply:export", "Print all resources as a file.", PLATFORM),
    "profiles": Row("commonage.cli.resources.profiles:profiles", "Import launch profiles of KubeSpawner.", PLATFORM),
    "resource": Row("commonage.cli.resources.resource:resource", "List, set and delete resources.", PLATFORM),
    "gitops": Row("commonage.cli.resources.gitops:gitops", "Apply resources from a git branch continuously.", PLATFORM),
    "up": Row("commonage.server.commands.server:up", "Start the server.", SERVER),
    "component": Row("commonage.server.commands.server:component", "Run one component in its own process.", SERVER),
    "token": Row("commonage.server.commands.server:token", "Create a token for a user.", SERVER),
    "config": Row("commonage.server.commands.server:config", "Show all settings and their sources.", SERVER),
    "doctor": Row("commonage.server.commands.doctor:doctor", "Check this machine and its server.", SERVER),
    "db": Row("commonage.server.commands.db:db", "Check or upgrade the database.", SERVER),
    "replay": Row(
        "commonage.server.commands.replay:replay", "Simulate past workloads with other policies or nodes.", SERVER
    ),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is used, so that the command line starts fast.

    `lazy` has `module:attribute` by name; these commands are listed after the group's own.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.lazy.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


SHORT = {"env": "environment"}
"""Short names of commands. They are not listed."""


class MainGroup(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, SHORT.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(row.section for row in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl([(name, row.help) for name, row in COMMANDS.items() if row.section == section])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors of the server, and input that cannot be sent, become a message and an exit code."""
        try:
            return super().invoke(ctx)
        except click.NoSuchCommand as error:
            raise click.UsageError(_unknown_command(error), error.ctx) from None
        except ApiError as error:
            raise ServerRefused(error) from error
        except ValueError as error:
            if type(error).__name__ != "ValidationError":  # of pydantic, which is not imported only for this name
                raise
            from commonage.cli.workloads.request import validation_messages

            raise Failure("\n".join(validation_messages(error)), MISUSED) from None  # type: ignore[arg-type]  # a ValidationError, see above


def _unknown_command(error: click.NoSuchCommand) -> str:
    assert error.ctx is not None and isinstance(error.ctx.command, click.Group)
    known = error.ctx.command.list_commands(error.ctx)
    close = difflib.get_close_matches(error.command_name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"no command `{error.ctx.command_path} {error.command_name}`.{hint} Commands: {', '.join(known)}"


@click.group(
    cls=MainGroup,
    lazy={name: row.place for name, row in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success; 1 failure; 2 wrong usage or not allowed; 3 the server cannot be reached. "
    "`run` and `attach` end with the exit code of the job, `exec` with that of the command.",
)
@click.version_option(__version__, prog_name="commonage", message="%(prog)s %(version)s")
def app() -> None:
    """Run notebook sessions and jobs with a share of a GPU.

    \b
    Example:
      commonage run --gpus 6GiB --time 30m -- python train.py
    """
