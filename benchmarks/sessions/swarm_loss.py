"""`swarm-loss`: time until the loss of a Swarm node is noticed and its ten jobs run on other nodes."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click
from tests.contract.agent.test_swarm import agents_on
from tests.contract.harness.swarm import Swarm, swarm_of
from tests.integration.test_swarm_loss import CUT_OFF, DAEMON_KILLED, Loss, lose_a_node, power_off

from benchmarks.report import Figure, as_json, progress, show

LOSSES = {"daemon killed": "killed", "power off": "off", "network cut": "cut"}


@click.command("swarm-loss")
@as_json
def swarm_loss(as_json: bool) -> None:
    """Loss of one of two nodes and of one of four: its Docker daemon killed, its power off, its network cut.

    It needs root, docker.io and iptables; the Swarms are made of network namespaces on this machine.

    \b
    Example:
      sudo .venv/bin/python -m benchmarks swarm-loss
    """
    figures: list[Figure] = []
    for workers in (1, 3):
        with swarm_of(workers) as swarm, tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
            for loss, kind in LOSSES.items():
                name = f"one of {1 + workers} nodes, {loss}"
                progress(name)
                figures += _figures(name, asyncio.run(_lose(swarm, Path(folder, kind), kind)))
    click.echo(show("Loss of a Swarm node", figures, as_json=as_json))


def _figures(name: str, found: Loss) -> list[Figure]:
    gaps = found.gaps()
    between = "from a job's last output there to its first elsewhere"
    return [
        Figure(f"{name}: noticed", found.noticed_s, "s", "since the loss"),
        Figure(f"{name}: all jobs run elsewhere", found.elsewhere_s, "s", f"since the loss; {len(gaps)} jobs"),
        Figure(f"{name}: shortest gap", min(gaps), "s", f"{between}; more than 0: none runs twice"),
        Figure(f"{name}: longest gap", max(gaps), "s", between),
    ]


async def _lose(swarm: Swarm, folder: Path, kind: str) -> Loss:
    """With real agents: an agent that is cut off pauses the workloads of its node."""
    data = folder / "data"
    data.mkdir(parents=True)
    async with agents_on(folder / "agents", swarm) as agents:
        *_, last = swarm.machines
        blow = {"killed": DAEMON_KILLED, "off": power_off(agents, last), "cut": CUT_OFF}[kind]
        return await lose_a_node(swarm, data, blow, agents.linked)
