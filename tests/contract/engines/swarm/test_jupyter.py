"""JupyterLab in a service of a real Swarm, visited on the node where it runs."""

import pytest
from tests.contract.engines.jupyter_contract import JupyterContract
from tests.contract.harness.jupyter_image import load_jupyter
from tests.contract.harness.swarm import Swarm

pytestmark = pytest.mark.needs("docker", "images")


class TestSwarm(JupyterContract):
    @pytest.fixture
    def visitor(self, swarm: Swarm) -> list[str]:
        [worker] = [node for node in swarm.workers if node.name == "worker1"]
        load_jupyter(worker.daemon)
        return list(worker.inside())
