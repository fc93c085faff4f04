"""JupyterLab in a container of a real Docker daemon."""

import pytest
from tests.contract.engines.jupyter_contract import JupyterContract
from tests.contract.harness.dockerd import Dockerd
from tests.contract.harness.jupyter_image import load_jupyter

pytestmark = pytest.mark.needs("docker", "images")


class TestDocker(JupyterContract):
    @pytest.fixture
    def visitor(self, dockerd: Dockerd) -> list[str]:
        load_jupyter(dockerd)
        return []
