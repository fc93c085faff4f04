"""How soon a machine of a Swarm that dies is noticed, and its ten jobs run elsewhere.

    sudo .venv/bin/python tests/bench/bench_swarm_loss.py

Takes root, docker.io and iptables; makes a Swarm of one manager and three workers of network namespaces.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.contract.swarm import swarm_of
from tests.integration.test_swarm_loss import lose_a_machine


def main() -> None:
    """Once, with a line for each figure."""
    with swarm_of(3) as swarm, tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        found = asyncio.run(lose_a_machine(swarm, Path(folder)))
    gaps = found.gaps()
    print(f"noticed after {found.noticed_s:.1f} s")
    print(f"all {len(gaps)} jobs run elsewhere after {found.elsewhere_s:.1f} s")
    print(f"between a job's last word there and its first elsewhere: {min(gaps):.1f} to {max(gaps):.1f} s")


if __name__ == "__main__":
    main()
