"""How soon a machine of a Swarm that dies, or is cut off, is noticed, and its ten jobs run elsewhere.

    sudo .venv/bin/python tests/bench/bench_swarm_loss.py

Takes root, docker.io and iptables; makes Swarms of two and of four machines of network namespaces, one after the other.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.contract.swarm import Swarm, swarm_of
from tests.contract.test_agent_swarm import agents_on
from tests.integration.test_swarm_loss import CUT_OFF, DAEMON_KILLED, Loss, lose_a_machine, power_off


def say(what: str, found: Loss) -> None:
    """A line for each figure."""
    gaps = found.gaps()
    print(f"{what}: noticed after {found.noticed_s:.1f} s")
    print(f"{what}: all {len(gaps)} jobs run elsewhere after {found.elsewhere_s:.1f} s")
    print(f"{what}: between a job's last word there and its first elsewhere: {min(gaps):.1f} to {max(gaps):.1f} s")


async def lose(swarm: Swarm, folder: Path, what: str) -> Loss:
    """With real agents, of which the one that is cut off pauses what runs on its machine."""
    data = folder / "data"
    data.mkdir(parents=True)
    async with agents_on(folder / "agents", swarm) as agents:
        *_, last = swarm.machines
        blow = {"killed": DAEMON_KILLED, "off": power_off(agents, last), "cut": CUT_OFF}[what]
        return await lose_a_machine(swarm, data, blow, agents.linked)


def main() -> None:
    """Once each."""
    for workers in (1, 3):
        with swarm_of(workers) as swarm, tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
            for what, words in (("killed", "its daemon killed"), ("off", "its power gone"), ("cut", "its cable drawn")):
                found = asyncio.run(lose(swarm, Path(folder, what), what))
                say(f"one of {1 + workers} machines, {words}", found)


if __name__ == "__main__":
    main()
