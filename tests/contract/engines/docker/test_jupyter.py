"""JupyterLab in a container of a real Docker daemon, and a notebook as a job."""

import json
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from tests.contract.engines.jupyter_contract import JupyterContract
from tests.contract.harness.dockerd import Dockerd
from tests.contract.harness.jupyter_image import NAME, load_jupyter

from commonage.domain.images import Environment
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import EngineRig

pytestmark = pytest.mark.needs("docker", "images")
_SOURCES = ("import os; print(os.getcwd())", "1 / 0", "print('never')")


class TestDocker(JupyterContract):
    @pytest.fixture
    def visitor(self, dockerd: Dockerd) -> list[str]:
        load_jupyter(dockerd)
        return []

    async def test_a_notebook_job_leaves_a_partial_result_with_the_traceback_in_the_home(
        self, rig: EngineRig, visitor: list[str], tmp_path: Path
    ) -> None:
        cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
        notebook = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}}
        notebook["cells"] = [{**cell, "source": source} for source in _SOURCES]
        content = json.dumps(notebook).encode()
        with tarfile.open(tmp_path / "files.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("work.ipynb")
            info.size = len(content)
            archive.addfile(info, BytesIO(content))
        request = rig.start_request(
            Behaviour(),
            memory_mib=512,
            environment=Environment("jupyter", "JupyterLab", image=NAME),
            command=("work.ipynb", "--folder", "."),
            bundle_path=str(tmp_path / "files.tar.gz"),
        )
        end = await rig.ended(request)
        lines = await rig.lines(request.attempt_id)
        assert end.exit_code == 1, lines
        assert "/home/ada" in lines
        [result] = tmp_path.rglob("work.result-*.ipynb")
        done = json.loads(result.read_text())
        assert done["metadata"]["commonage"]["state"] == "failed"
        outputs = [one["outputs"] for one in done["cells"]]
        assert (outputs[1][0]["ename"], outputs[2]) == ("ZeroDivisionError", [])
