"""The command line: a table of benchmarks, and a click group that imports a benchmark when it is used.

To add a benchmark, write its file and add a line to BENCHMARKS.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click


class Benchmark(NamedTuple):
    """The command as MODULE:NAME, and its help text."""

    home: str
    help: str


BENCHMARKS = {
    "placement": Benchmark("benchmarks.placement.placement:placement", "GPU allocation by placement policy."),
    "schedule": Benchmark("benchmarks.planner.schedule:schedule", "Scheduling passes over many nodes."),
    "plan": Benchmark("benchmarks.planner.plan:plan", "Plans and explanations of 10,000 queued jobs."),
    "control": Benchmark("benchmarks.control.control:control", "Submits, starts, lists, memory of the control plane."),
    "load": Benchmark("benchmarks.control.load:load", "The control plane with many different jobs and followers."),
    "api": Benchmark("benchmarks.control.api:api", "Submits and lists of the API alone."),
    "store": Benchmark("benchmarks.control.store:store", "Commits and reads of the store alone."),
    "retention": Benchmark(
        "benchmarks.control.retention:retention", "A year of ended workloads: size, lists, deletion."
    ),
    "faults": Benchmark("benchmarks.faults.faults:faults", "A day of faults: is anything lost, doubled or leaked?"),
    "class": Benchmark(
        "benchmarks.classroom.classroom:classroom", "A tutorial day: fifty students on a Swarm, one worker dies."
    ),
    "process-engine": Benchmark("benchmarks.control.process_engine:process_engine", "The process engine alone."),
    "sessions": Benchmark(
        "benchmarks.sessions.sessions:sessions", "Session starts, and those of a JupyterHub spawner."
    ),
    "materials": Benchmark(
        "benchmarks.materials.materials:materials", "A large repository of course files: sync, copies, a push."
    ),
    "sites": Benchmark("benchmarks.sites.sites:sites", "A hundred appliances over the site link, and a notebook."),
    "swarm": Benchmark("benchmarks.sessions.swarm:swarm", "No-op jobs on a Docker Swarm, and plain services."),
    "swarm-loss": Benchmark("benchmarks.sessions.swarm_loss:swarm_loss", "The loss of a Swarm node under ten jobs."),
    "swarm-share": Benchmark("benchmarks.sessions.swarm_share:swarm_share", "The answer to a share that no node has."),
    "local-swarm": Benchmark(
        "benchmarks.sessions.local_swarm:local_swarm", "Run sessions or swarm on a Swarm made on this machine."
    ),
    "local-docker": Benchmark(
        "benchmarks.sessions.local_swarm:local_docker", "Run sessions on a Docker daemon made on this machine."
    ),
    "kubernetes": Benchmark(
        "benchmarks.kubernetes.kubernetes:kubernetes", "Jobs on a Kubernetes cluster, and the cluster alone."
    ),
    "gpu": Benchmark("benchmarks.gpu.gpu:gpu", "GPU shares on a node with GPUs: do they hold, what do they cost."),
}


class _Benchmarks(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in BENCHMARKS:
            ctx.fail(f"Unknown benchmark {cmd_name!r}. The benchmarks are {', '.join(BENCHMARKS)}.")
        module, _, name = BENCHMARKS[cmd_name].home.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Names"):
            formatter.write_dl([(name, benchmark.help) for name, benchmark in BENCHMARKS.items()])


@click.group(
    cls=_Benchmarks,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="NAME [OPTIONS]",
    invoke_without_command=True,
)
@click.pass_context
def main(context: click.Context) -> None:
    """Measure Commonage on this machine. Run it in the root of the repository.

    \b
    Example:
      python -m benchmarks control
      python -m benchmarks placement --traces DIR --list default --seeds 42-51 --policy all
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
