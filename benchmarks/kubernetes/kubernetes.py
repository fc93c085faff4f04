"""`kubernetes`: our engine on a Kubernetes cluster, and the cluster alone in the same run."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import click

from benchmarks.kubernetes.cluster import Cluster, cluster
from benchmarks.kubernetes.findings import Findings
from benchmarks.kubernetes.outage import outage
from benchmarks.kubernetes.queue import queue
from benchmarks.kubernetes.scale import fake_nodes, scale
from benchmarks.kubernetes.soak import soak
from benchmarks.kubernetes.starts import starts
from benchmarks.report import Figure, as_json, node, progress, show
from commonage.domain.errors import EngineFailure

_T = TypeVar("_T")
_SIGTERM_EXIT = 128 + signal.SIGTERM
PARTS = ("starts", "queue", "scale", "outage", "soak")


@dataclass(frozen=True, slots=True)
class Plan:
    """`each`: jobs of each kind during the outage. `outage` and `soak` in seconds."""

    submits: int = 30
    jobs: int = 500
    pods: int = 1000
    each: int = 8
    outage: float = 300.0
    soak: float = 3600.0


FULL, SHORT = Plan(), Plan(submits=3, jobs=20, pods=50, each=2, outage=20.0, soak=30.0)


@click.command
@click.option("--image", default="localhost/commonage-lab/base:1", show_default=True, help="An image with a shell.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this part; may be repeated.")
@click.option("--submits", type=click.IntRange(1), help="Jobs one after the other. Default: 30.")
@click.option("--jobs", type=click.IntRange(1), help="Short jobs in a queue. Default: 500.")
@click.option("--pods", type=click.IntRange(1), help="Pods on nodes that exist only in the API. Default: 1000.")
@click.option(
    "--fake-nodes", "fake", default="commonage-lab/fake", show_default=True, metavar="KEY",
    help="Label, with the value `true`, and taint of such nodes. Without any, `scale` is left out.",
)  # fmt: skip
@click.option("--outage", type=click.FloatRange(4), help="Seconds without the API server. Default: 300.")
@click.option("--soak", type=click.FloatRange(1), help="Seconds of random changes and faults. Default: 3600.")
@click.option("--seed", type=int, default=1, show_default=True, help="Determines the changes and faults of `soak`.")
@click.option("--short", is_flag=True, help="Small numbers of everything, unless they are given.")
@as_json
def kubernetes(
    image: str, parts: Sequence[str], fake: str, seed: int, short: bool, as_json: bool, **sizes: Any
) -> None:
    """Our engine on the cluster that KUBECONFIG names, and the cluster alone.

    The parts: `starts`, submit to running; `queue`, short jobs through; `scale`, many Pods on nodes that exist only in
    the API; `outage`, jobs while the API server is out of reach; `soak`, the engine's cache of Pods under changes and
    faults. All is done in a namespace of its own, which is removed at the end, also after Ctrl-C and SIGTERM. The exit
    code is 1 if something was lost or doubled, or the cache differs.

    \b
    Example:
      python -m benchmarks kubernetes --short
      python -m benchmarks kubernetes --part outage --outage 300
    """
    plan = replace(SHORT if short else FULL, **{name: value for name, value in sizes.items() if value is not None})
    try:
        figures, findings = asyncio.run(_until_sigterm(_all(image, parts or PARTS, plan, fake, seed)))
    except asyncio.CancelledError:
        click.echo("SIGTERM: what the benchmark made is removed.", err=True)
        sys.exit(_SIGTERM_EXIT)
    except EngineFailure as error:
        raise click.ClickException(str(error)) from error
    click.echo(_text(figures, findings, as_json=as_json))
    sys.exit(1 if findings.all else 0)


async def _until_sigterm(work: Coroutine[Any, Any, _T]) -> _T:
    """SIGTERM cancels `work` once, as Ctrl-C does. `timeout` sends it twice, which must not end the removal."""
    loop, doing = asyncio.get_running_loop(), asyncio.ensure_future(work)
    is_told = False

    def end() -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            doing.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        return await doing
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _all(image: str, parts: Sequence[str], plan: Plan, fake: str, seed: int) -> tuple[list[Figure], Findings]:
    figures: list[Figure] = []
    findings = Findings()
    async with cluster(image) as found:
        if {"starts", "queue"} & set(parts):
            async with found.server() as served:
                if "starts" in parts:
                    figures += await starts(found, served, plan.submits)
                if "queue" in parts:
                    figures += await queue(found, served, plan.jobs)
        if "scale" in parts:
            figures += await _scale(found, plan.pods, fake)
        if "outage" in parts:
            figures += await outage(found, plan.outage, plan.each, findings)
        if "soak" in parts:
            figures += await soak(found, plan.soak, seed, findings)
    return figures, findings


async def _scale(found: Cluster, pods: int, key: str) -> list[Figure]:
    if nodes := await fake_nodes(found, key):
        return await scale(found, pods, nodes, key)
    progress(f"no node has the label {key}=true: scale is left out")
    return []


def _text(figures: Sequence[Figure], findings: Findings, *, as_json: bool) -> str:
    title = "A Kubernetes cluster"
    if as_json:
        shown = [asdict(one) for one in figures]
        made = {"title": title, "node": node(), "figures": shown, "findings": asdict(findings)}
        return json.dumps(made, indent=2)
    return "\n".join([show(title, figures, as_json=False), *(f"\n{one}" for one in findings.all)])
