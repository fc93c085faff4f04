"""`kubernetes`: our engine on a Kubernetes cluster, and the cluster alone in the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from benchmarks.kubernetes.cluster import cluster
from benchmarks.kubernetes.queue import queue
from benchmarks.kubernetes.starts import starts
from benchmarks.report import Figure, as_json, show

PARTS = ("starts", "queue")


@click.command
@click.option("--image", default="localhost/commonage-lab/base:1", show_default=True, help="An image with a shell.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this part; may be repeated.")
@click.option("--submits", type=click.IntRange(1), help="Jobs of `starts`. Default: 30, or 3 if short.")
@click.option("--jobs", type=click.IntRange(1), help="Jobs of `queue`. Default: 500, or 20 if short.")
@click.option("--short", is_flag=True, help="Small numbers of everything.")
@as_json
def kubernetes(
    image: str, parts: Sequence[str], submits: int | None, jobs: int | None, short: bool, as_json: bool
) -> None:
    """Starts and throughput of jobs on the cluster that KUBECONFIG names, and of the cluster without Commonage.

    All is done in a namespace of its own, which is removed at the end.

    \b
    Example:
      python -m benchmarks kubernetes --short
    """
    figures = asyncio.run(_all(image, parts or PARTS, submits or (3 if short else 30), jobs or (20 if short else 500)))
    click.echo(show("A Kubernetes cluster", figures, as_json=as_json))


async def _all(image: str, parts: Sequence[str], submits: int, jobs: int) -> list[Figure]:
    figures: list[Figure] = []
    async with cluster(image) as found, found.server() as served:
        if "starts" in parts:
            figures += await starts(found, served, submits)
        if "queue" in parts:
            figures += await queue(found, served, jobs)
    return figures
