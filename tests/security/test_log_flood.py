"""A workload that prints at full speed: its log takes no more of the disk than it may."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.engines.rigs import docker_rig
from tests.contract.harness.dockerd import dockerd_with_image
from tests.fakes.waiting import until
from tests.security.api_site import site

from commonage.domain.reasons.attempts import LogTruncated
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
MAX = 8
FLOOD = 512  # MiB


async def test_a_workload_that_prints_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    settings = ProcessSettings(node_name="m", max_log_mib=MAX, cgroups=False)
    async with site(tmp_path, engine=lambda: ProcessEngine("local", tmp_path, settings=settings)) as here:
        flood = f"echo first; yes 0123456789abcdef | head -c {FLOOD}M; echo; echo last; exec sleep 300"
        job = await here.running(command=["sh", "-c", flood], memory_mib=256)
        [log] = tmp_path.glob("runs/*/log")
        await until(lambda: log.stat().st_size > FLOOD * MIB, within_s=240)
        await until(lambda: log.stat().st_blocks * 512 <= MAX * MIB)
        async with here.client() as ann:
            found = (await ann.get(f"/workloads/{job}/events")).json()["items"]
            (warning,) = [one["reason"] for one in found if one["kind"] == "warning"]
            assert (warning["code"], warning["params"]) == ("LogTruncated", {"limit_mib": MAX})
            lines = (await ann.get(f"/workloads/{job}/logs")).text.splitlines()
            assert (lines[0], lines[-1]) == ("first", "last")
            assert len([line for line in lines if line.startswith("[commonage:")]) == 1
            assert sum(map(len, lines)) < MAX * MIB
            await ann.post(f"/workloads/{job}/stop")
            await until(lambda: not here.control.queries.live_counts())


async def test_a_workload_that_prints_much_and_ends_at_once_leaves_a_short_log(tmp_path: Path) -> None:
    settings = ProcessSettings(node_name="m", max_log_mib=MAX, cgroups=False)
    async with site(tmp_path, engine=lambda: ProcessEngine("local", tmp_path, settings=settings)) as here:
        async with here.client() as ann:
            command = ["sh", "-c", "yes 0123456789abcdef | head -c 64M"]
            await ann.post("/workloads", json={"command": command, "memory_mib": 256})
        await until(lambda: list(tmp_path.glob("runs/.old/*/log")))
        [log] = tmp_path.glob("runs/.old/*/log")
        assert log.stat().st_size == 64 * MIB
        assert log.stat().st_blocks * 512 <= MAX * MIB


@pytest.mark.needs("docker")
async def test_a_container_that_prints_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    with dockerd_with_image() as daemon:
        async with docker_rig(tmp_path, daemon, max_log_mib=MAX) as rig:
            # The image has a shell and little else.
            lines_64k = 'text=0123456789abcde; for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do text="$text\n$text"; done'
            write = f'n=0; while [ $n -lt {FLOOD * 16} ]; do echo "$text"; n=$((n + 1)); done'
            flood = ("sh", "-c", f"echo first; {lines_64k}; {write}; echo last; exec sleep 300")
            order = await rig.started(rig.start_request(FOREVER, command=flood))
            [log] = tmp_path.glob("docker/runs/*/log")
            await until(lambda: log.stat().st_size >= FLOOD * MIB, within_s=240)
            await until(lambda: log.stat().st_blocks * 512 <= MAX * MIB)
            lines = await rig.lines(order.attempt_id)
            assert (lines[0], lines[-1]) == ("first", "last")
            assert len([line for line in lines if line.startswith("[commonage:")]) == 1
            assert isinstance((await rig.status(order.attempt_id)).reason, LogTruncated)
