"""The table of all verbs, and the group that loads a verb only when it is used.

To add a verb, write its file and give it a line in VERBS. Verbs that need the server (`up`, `token`, …) live in
`commonage.server.commands`; the table names them as text, so that the command line stays blind to the server.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any, NamedTuple

import click

from commonage import __version__
from commonage.cli.failures import MISUSED, Failure, Refused
from commonage.sdk.errors import ApiError


class Verb(NamedTuple):
    """Where a verb is, and what `commonage --help` says of it."""

    home: str
    says: str
    group: str


WORK, NODES, YOU, SERVER = "Work", "Nodes", "You", "The server, on its own machine"

VERBS: dict[str, Verb] = {
    "run": Verb("commonage.cli.run:run", "Run a command as a job and follow it to its end.", WORK),
    "profile": Verb("commonage.cli.profile:profile", "Run a command once and say what to ask for.", WORK),
    "submit": Verb("commonage.cli.submit:submit", "Submit what a job file describes.", WORK),
    "ps": Verb("commonage.cli.ps:ps", "List your workloads.", WORK),
    "logs": Verb("commonage.cli.logs:logs", "Show what a workload has said.", WORK),
    "attach": Verb("commonage.cli.logs:attach", "Follow a workload to its end, as run does.", WORK),
    "exec": Verb("commonage.cli.exec:exec_", "Run a command beside what runs in a workload.", WORK),
    "explain": Verb(
        "commonage.cli.explain:explain", "Say why a workload waits, or whether a request could start.", WORK
    ),
    "stop": Verb("commonage.cli.stop:stop", "End workloads.", WORK),
    "top": Verb("commonage.cli.top:top", "Watch nodes, GPUs and workloads.", NODES),
    "node": Verb("commonage.cli.node:node", "List nodes; join, drain, remove them.", NODES),
    "env": Verb("commonage.cli.env:env", "List the environments that workloads can run in.", NODES),
    "image": Verb("commonage.cli.image:image", "Build images for work to run in; push, list and remove them.", NODES),
    "volume": Verb("commonage.cli.volume:volume", "List data that workloads may have.", NODES),
    "node-pool": Verb("commonage.cli.node_pool:node_pool", "Show the nodes that are rented.", NODES),
    "reservation": Verb(
        "commonage.cli.reservation:reservation", "List what is kept for whom and when; keep room.", NODES
    ),
    "tenant": Verb("commonage.cli.tenant:tenant", "List who shares the nodes, and what each holds.", YOU),
    "usage": Verb("commonage.cli.usage:usage", "Show what was used, and what it cost.", YOU),
    "info": Verb("commonage.cli.info:info", "Show what this installation is, and who you are to it.", YOU),
    "login": Verb("commonage.cli.login:login", "Keep a token for this command line.", YOU),
    "completion": Verb("commonage.cli.completion:completion", "Print what makes your shell complete commands.", YOU),
    "up": Verb("commonage.server.commands.up:up", "Start Commonage on this machine.", SERVER),
    "part": Verb(
        "commonage.server.commands.component:part", "Run JupyterHub, proxy or registry apart from it.", SERVER
    ),
    "token": Verb("commonage.server.commands.token:token", "Make a token for a user.", SERVER),
    "config": Verb("commonage.server.commands.config:config", "Show the settings, and where each comes from.", SERVER),
    "doctor": Verb("commonage.server.commands.doctor:doctor", "Check this machine and its server.", SERVER),
    "db": Verb("commonage.server.commands.db:db", "Check or upgrade the database.", SERVER),
    "replay": Verb(
        "commonage.server.commands.replay:replay", "Play the past again, under other rules or with more GPUs.", SERVER
    ),
}


class LazyGroup(click.Group):
    """A group that knows its verbs by name only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the verb, None if there is no such one."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, _, name = verb.home.partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, in its groups; loads nothing."""
        for group in dict.fromkeys(verb.group for verb in VERBS.values()):
            with formatter.section(group):
                formatter.write_dl([(name, verb.says) for name, verb in VERBS.items() if verb.group == group])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; a refusal of the server becomes a sentence and an exit code, so does what cannot be sent."""
        try:
            return super().invoke(ctx)
        except click.NoSuchCommand as error:
            raise click.UsageError(_no_such_verb(error), error.ctx) from None
        except ApiError as error:
            raise Refused(error) from error
        except ValueError as error:
            if type(error).__name__ != "ValidationError":  # pydantic's, which is not imported for its name alone
                raise
            from commonage.cli.asks import sentences

            raise Failure("\n".join(sentences(error)), MISUSED) from None  # type: ignore[arg-type]  # a ValidationError, see above


def _no_such_verb(error: click.NoSuchCommand) -> str:
    """What was asked, what is meant perhaps, and what there is."""
    assert error.ctx is not None and isinstance(error.ctx.command, click.Group)
    there = error.ctx.command.list_commands(error.ctx)
    close = difflib.get_close_matches(error.command_name, there, n=1)
    meant = f"; did you mean {close[0]}?" if close else "."
    return f"`{error.ctx.command_path} {error.command_name}` is no verb{meant} There are: {', '.join(there)}"


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 what was asked for failed; 2 it was asked wrongly or not allowed; 3 the server "
    "cannot be reached. `run` and `attach` end with the code of the job itself, `exec` with the command's.",
)
@click.version_option(__version__, prog_name="commonage", message="%(prog)s %(version)s")
def app() -> None:
    """Notebook sessions and jobs with a share of a GPU.

    \b
    Example:
      commonage run --gpus 6GiB --time 30m -- python train.py
    """
