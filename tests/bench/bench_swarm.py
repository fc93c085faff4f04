"""`commonage bench` on a real Swarm of one manager and three workers, made of network namespaces on this machine.

    sudo .venv/bin/python tests/bench/bench_swarm.py sessions --at-once 1,10,30
    sudo .venv/bin/python tests/bench/bench_swarm.py swarm --count 200

Takes root, docker.io and iptables. What stands behind the first word goes to that benchmark. Our server and the peer
run on the manager's machine, the sessions and jobs on the workers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.notebook_image import PATH, notebook_image
from tests.contract.dockerd import minimal_image
from tests.contract.swarm import Swarm

WORKERS = 3
IMAGE = "commonage-bench:1"


def main() -> int:
    """Make the Swarm, run the benchmark on its manager, remove the Swarm."""
    what, *words = sys.argv[1:] or ["sessions"]
    image = notebook_image() if what == "sessions" else minimal_image()
    swarm = Swarm(WORKERS)
    try:
        swarm.start(image, IMAGE, changes=f"&changes={quote(f'ENV PATH={PATH}')}" if what == "sessions" else "")
        manager = swarm.manager
        # Workloads run on the workers, ours as the peer's.
        node = swarm.nodes()[manager.name]
        spec = {**node["Spec"], "Availability": "drain"}
        version = node["Version"]["Index"]
        manager.daemon.ask("POST", f"/nodes/{node['ID']}/update?version={version}", spec)
        extra = ["--engine", "swarm", "--reach", manager.address] if what == "sessions" else []
        command = [sys.executable, "-m", "commonage", "bench", what, "--image", IMAGE]
        command += ["--docker-url", manager.daemon.url, *extra, *words]
        print(json.dumps({name: one["Status"]["State"] for name, one in swarm.nodes().items()}), file=sys.stderr)
        return subprocess.run([*manager.inside(), *command], check=False).returncode
    finally:
        swarm.remove()


if __name__ == "__main__":
    sys.exit(main())
