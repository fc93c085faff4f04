"""People at work on a portal without hub and nodes, to look at pages while working on them:

python -m tests.fakes.portal_demo --port 8765
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import uvicorn
from tests.fakes.portal import ADMIN, GIB, USER, Portal

from commonage.control.workloads.submission import Submission
from commonage.domain.images import Kernel, Provenance, SourceFile
from commonage.domain.principals import Principal
from commonage.domain.reasons.attempts import PreparingEnvironment
from commonage.domain.requests import parse_gpus
from commonage.domain.workloads import Dependency, Kind, RetryPolicy, Workload
from commonage.ports.metrics import Sample
from commonage.testing.behaviour import Behaviour
from commonage.testing.factories import image

HOUR_S = 3600
SESSIONS = (
    ("ann", "", "12GiB", "notebook"),
    ("ann", "diffusion", "40GiB", "torch"),
    ("carol", "", "6GiB", "notebook"),
    ("dmitri", "", "16GiB", "torch"),
)


def _job(name: str, gpus: str | None, **fields: Any) -> Submission:
    command = fields.pop("command", ("python", f"{name.partition(' ')[0]}.py"))
    return Submission(Kind.JOB, command, name=name, gpu=parse_gpus(gpus), **fields)


async def populate(portal: Portal, ended: int) -> None:
    """Create sessions, and running, waiting and failed jobs; before them `ended` small jobs that have ended."""
    _direct(portal, ended)
    await _push(portal)
    people = {name: Principal(name, USER) for name in ("ann", "bob", "carol", "dmitri", "eve")}

    async def submit(owner: str, ask: Submission) -> Workload:
        return (await portal.control.workloads.submit(people[owner], ask)).workloads[0]

    for number in range(ended):
        await submit(
            ("ann", "bob", "carol")[number % 3], _job(f"experiment {number}", None, cpus_milli=200, memory_mib=64)
        )
    await asyncio.sleep(2 if ended < 200 else 8)
    for owner, name, gpus, environment in SESSIONS:
        fields: dict[str, Any] = {"environment": environment, "gpu": parse_gpus(gpus), "time_limit_s": 4 * HOUR_S}
        ask = Submission(Kind.SESSION, name=name, owner=owner, **fields)
        await portal.control.workloads.submit(Principal("hub", ADMIN), ask)
    await asyncio.sleep(0.5)
    big: dict[str, Any] = {"cpus_milli": 4000, "memory_mib": 16 * GIB, "environment": "torch"}
    await submit("bob", _job("train resnet50", "24GiB", time_limit_s=5400, **big))
    await submit("ann", _job("finetune llama", "8GiB", time_limit_s=2 * HOUR_S, cpus_milli=2000, memory_mib=8 * GIB))
    await submit("ann", _job("embed corpus", "4GiB"))
    await submit("ann", _job("sweep bad", None, retry=RetryPolicy(2, 5.0)))
    await asyncio.sleep(0.5)
    await submit("eve", _job("render movie", "20GiB", time_limit_s=1800))
    waits = await submit("ann", _job("train big model", "48GiB", time_limit_s=HOUR_S))
    await submit("bob", _job("evaluate", "1"))
    plot = ("sh", "-c", "python plot.py | tee plots.txt")
    await submit("ann", _job("report", None, depends_on=(Dependency(waits.id),), command=plot))


async def _push(portal: Portal) -> None:
    """Images that were pushed: one is there, one on its way, one cannot be fetched."""
    portal.engine.broken_environments["public/tools"] = "the registry of docker.io/lab/tools did not answer within 15 s"
    kernels = (
        Kernel("torch", "PyTorch 2.9", "/opt/kernels/torch"),
        Kernel("py310", "Python 3.10", "/opt/kernels/py310"),
    )
    files = (SourceFile("requirements.txt", f"sha256:{'5e' * 32}"), SourceFile("old.txt", f"sha256:{'7a' * 32}"))
    made = Provenance(at=portal.clock.now() - 7200, builder="buildah 1.28.2", base="debian:bookworm", files=files)
    made = replace(made, base_digest=f"sha256:{'4b' * 32}", commit="5fa02c1d9", dirty=True)
    whole = {"title": "Vision course", "description": "PyTorch beside the old Python that the exercises were made for."}
    root = Principal("root", ADMIN)
    fields: dict[str, Any] = {"kernels": kernels, "provenance": made, "min_vram_mib": 4 * GIB, **whole}
    await portal.control.images.add(root, image("commons/vision:2.9", None, **fields), "registry.test:5000")
    await asyncio.sleep(0.2)
    portal.engine.prepare_s = 900
    await portal.control.images.add(root, image("commons/speech", None), "registry.test:5000")
    await portal.control.images.add(root, image("public/tools", None, needs_gpu=True), "registry.test:5000")


def _direct(portal: Portal, ended: int) -> None:
    trace = ("Traceback (most recent call last):", "ValueError: shapes (64,) and (32,) do not align")
    portal.engine.behave(Behaviour(exit_code=1, prints=trace), name="sweep bad")
    slow = Behaviour(
        start_delay_s=600, start_reason=PreparingEnvironment(environment="PyTorch", step="12 of 31 packages")
    )
    portal.engine.behave(slow, name="embed corpus")
    for number in range(ended):
        portal.engine.behave(Behaviour(exit_code=(0, 0, 0, 0, 3)[number % 5]), name=f"experiment {number}")


async def chatter(portal: Portal) -> None:
    step = 0
    while True:
        step += 1
        loss = 2.3 / (1 + step / 40) + random.random() / 20
        rate = random.randint(300, 420)
        line = f"epoch {step // 20:3d} step {step:5d}  loss {loss:.4f}  \x1b[32mlr 3.0e-04\x1b[0m  {rate} samples/s"
        for one in portal.control.live_state:
            if one.attempt and one.attempt.id in portal.engine.world.logs and one.state == "running":
                portal.engine.say(one.attempt.id, line)
        await asyncio.sleep(0.7)


async def backdate(portal: Portal) -> None:
    """Measurements of the last hour, so that charts are not empty."""
    now = portal.clock.now()
    samples: list[Sample] = []
    for one in portal.control.live_state:
        if one.attempt is not None:
            samples += _of_attempt(one, now)
            object.__setattr__(one.attempt.allocation, "at", now - 1200)
    for device in portal.devices.inventory():
        for index in range(720):
            at, subject = now - 5 * (720 - index), f"device:{device.uuid}"
            level = 0.5 + 0.3 * random.random() + (0.1 if index % 300 > 150 else -0.2)
            samples.append(Sample("gpu_utilisation", subject, at, level))
            samples.append(Sample("gpu_memory_mib", subject, at, device.memory_mib * (0.4 + 0.3 * (index > 300))))
    await portal.metrics.write(samples)


def _of_attempt(workload: Workload, now: float) -> Iterator[Sample]:
    assert workload.attempt is not None
    subject = f"attempt:{workload.attempt.id}"
    vram = sum(share.memory_mib for share in workload.attempt.allocation.shares)
    for index in range(240):
        at, ramp, wave = now - 5 * (240 - index), min(1.0, index / 30), random.random() / 8
        yield Sample("cpu_cores", subject, at, ramp * (0.7 + wave))
        yield Sample("memory_mib", subject, at, 400 + 300 * ramp + 40 * wave)
        yield Sample("gpu_utilisation", subject, at, ramp * (0.75 + wave))
        yield Sample("gpu_memory_mib", subject, at, vram * ramp * (0.8 + wave / 4))


async def serve(port: int, ended: int) -> None:
    portal = Portal()
    async with portal.running():
        await populate(portal, ended)
        await backdate(portal)
        talking = asyncio.create_task(chatter(portal))
        config = uvicorn.Config(portal.app, port=port, log_level="warning", timeout_graceful_shutdown=1)
        print(f"http://127.0.0.1:{port}/services/commonage/", flush=True)
        await uvicorn.Server(config).serve()
        talking.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--ended", type=int, default=40)
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.ended))
