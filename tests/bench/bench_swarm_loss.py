"""How soon a machine of a Swarm that dies, or is cut off, is noticed, and its ten jobs run elsewhere.

    sudo .venv/bin/python tests/bench/bench_swarm_loss.py

Takes root, docker.io and iptables; makes a Swarm of one manager and three workers of network namespaces.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.contract.swarm import Swarm, swarm_of
from tests.contract.test_agent_swarm import agents_on
from tests.integration.test_swarm_loss import CUT_OFF, Loss, lose_a_machine


def say(what: str, found: Loss) -> None:
    """A line for each figure."""
    gaps = found.gaps()
    print(f"{what}: noticed after {found.noticed_s:.1f} s")
    print(f"{what}: all {len(gaps)} jobs run elsewhere after {found.elsewhere_s:.1f} s")
    print(f"{what}: between a job's last word there and its first elsewhere: {min(gaps):.1f} to {max(gaps):.1f} s")


async def cut(swarm: Swarm, folder: Path) -> Loss:
    """With real agents, of which the one that is cut off ends what runs on its machine."""
    async with agents_on(folder / "agents", swarm) as agents:
        (folder / "data").mkdir()
        return await lose_a_machine(swarm, folder / "data", CUT_OFF, agents.linked)


def main() -> None:
    """Once each."""
    with swarm_of(3) as swarm, tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        Path(folder, "killed").mkdir()
        say("its daemon killed", asyncio.run(lose_a_machine(swarm, Path(folder, "killed"))))
        say("its cable drawn", asyncio.run(cut(swarm, Path(folder, "cut"))))


if __name__ == "__main__":
    main()
