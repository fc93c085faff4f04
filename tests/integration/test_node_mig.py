"""`commonage node mig`: the plan, what it refuses, and what it runs, with a fake nvidia-smi."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from tests.contract.engines.rigs import HERE

from commonage.cli import main
from commonage.domain.nodes import Device, Node, NodeReport, NodeState, Share
from commonage.domain.reasons.devices import MigWithoutInstances
from commonage.engines.rundir.runs import Exit, Runs
from commonage.gpu.none import NoDevices
from commonage.ports.store import Batch
from commonage.server.commands import node_mig
from commonage.store.sql_store import SqlStore
from commonage.store.upgrade import upgrade
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import StartRequestFactory

DEVICE = Device("GPU-aaaa", 0, "NVIDIA A100", 40960, driver="580.1")
INSTANCE = Device(
    "MIG-cccc", 100, "NVIDIA A100", 4864, mig_profile="1g.5gb", parent_uuid="GPU-aaaa", parent_memory_mib=40960
)
SMI = """#!/bin/sh
echo "$*" >>"$0.calls"
cat "$0.says" 2>/dev/null
[ ! -e "$0.fails" ]
"""


class Devices(NoDevices):
    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = devices

    def inventory(self) -> Sequence[Device]:
        return self.devices


class Site:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = folder / "data"
        self.devices: list[Device] = [DEVICE]
        self.smi = folder / "bin" / "nvidia-smi"
        self.smi.parent.mkdir()
        self.smi.write_text(SMI)
        self.smi.chmod(0o755)
        monkeypatch.setattr(node_mig, "_devices", lambda _name: Devices(self.devices))
        monkeypatch.setenv("PATH", f"{self.smi.parent}:/usr/bin:/bin")
        monkeypatch.setenv("COMMONAGE_NODE_NAME", "gpu-1")
        monkeypatch.chdir(folder)

    def mig(self, *arguments: str) -> tuple[int, str]:
        """Its exit code, and all that it said."""
        done = CliRunner().invoke(main, ["node", "mig", *arguments, "--data-dir", str(self.data)])
        return done.exit_code, done.output

    def beside(self, ending: str) -> Path:
        return self.smi.with_name(f"nvidia-smi{ending}")

    @property
    def calls(self) -> list[str]:
        return self.beside(".calls").read_text().splitlines() if self.beside(".calls").exists() else []

    def knows_the_node(self, drain: bool) -> None:
        """As the database of a server has it."""
        report = NodeReport("gpu-1", 1000, 1024)
        state = NodeState.DRAINING if drain else NodeState.READY

        async def write() -> None:
            url = f"sqlite+aiosqlite:///{self.data}/commonage.db"
            await upgrade(url)
            store = SqlStore(url)
            await store.open()
            node = Node("gpu-1", "local", "process", state, report, 1.0, "root" if drain else "")
            await store.commit(Batch(nodes=[node]))
            await store.close()

        self.data.mkdir()
        anyio.run(write)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_the_plan_is_shown_first_and_done_with_yes(node: Site) -> None:
    code, said = node.mig("gpu-1", "0", "1g.5gb,2g.10gb")
    assert code == 0, said
    assert "nvidia-smi mig -i 0 -cgi 1g.5gb,2g.10gb -C" in said
    assert "Not applied" in said
    assert not node.calls
    code, said = node.mig("gpu-1", "GPU-aaaa", "1g.5gb,2g.10gb", "--yes")
    assert code == 0, said
    assert node.calls == ["-i 0 -mig 1", "mig -i 0 -cgi 1g.5gb,2g.10gb -C"]


def test_a_device_that_is_split_is_made_one_again(node: Site) -> None:
    node.devices = [INSTANCE]
    assert node.mig("gpu-1", "MIG-cccc", "off", "--yes")[0] == 0
    assert node.calls == ["mig -i 0 -dci", "mig -i 0 -dgi", "-i 0 -mig 0"]


def test_a_device_in_mig_mode_without_instances_gets_some(node: Site) -> None:
    node.devices = [replace(DEVICE, faults=(MigWithoutInstances(index=0),))]
    assert node.mig("gpu-1", "0", "1g.5gb", "--yes")[0] == 0
    assert node.calls == ["mig -i 0 -cgi 1g.5gb -C"]


def test_what_is_so_already_needs_nothing(node: Site) -> None:
    node.devices = [INSTANCE]
    assert "Nothing to do" in node.mig("gpu-1", "0", "1g.5gb", "--yes")[1]
    assert not node.calls


def test_a_node_that_takes_work_is_not_touched(node: Site) -> None:
    node.knows_the_node(drain=False)
    code, said = node.mig("gpu-1", "0", "1g.5gb", "--yes")
    assert code == 2
    assert "commonage node drain gpu-1" in said
    assert not node.calls


def test_running_work_is_not_touched(node: Site) -> None:
    node.knows_the_node(drain=True)
    order = StartRequestFactory(HERE, "gpu-1", lambda _: ("true",), lambda: 1.0)(Behaviour())
    share = Share("GPU-aaaa", 0, "A100", 4096, 100, whole=False, device_memory_mib=40960)
    runs = Runs(node.data / "runs")
    runs.open()
    folder = runs.create(replace(order, allocation=replace(order.allocation, shares=(share,))), None)
    code, said = node.mig("gpu-1", "0", "1g.5gb", "--yes")
    assert code == 2
    assert order.workload_id in said
    folder.write_exit(Exit(0, None, 2.0))
    assert node.mig("gpu-1", "0", "1g.5gb", "--yes")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("other", "0", "off"), "this machine is 'gpu-1'"),
        (("gpu-1", "7", "off"), "there is no GPU '7'"),
        (("gpu-1", "0", "1g.5gb,small"), "'small' is no MIG profile"),
        (("gpu-1", "0", "1g.5gb; rm -rf /"), "is no MIG profile"),
    ],
)
def test_bad_input_is_named(node: Site, arguments: tuple[str, ...], said: str) -> None:
    code, output = node.mig(*arguments, "--yes")
    assert code == 2
    assert said in output
    assert not node.calls


@pytest.mark.parametrize(
    ("ending", "text", "said"),
    [
        (".fails", "In use by another client", "`nvidia-smi -i 0 -mig 1` failed: In use by another client"),
        (".says", "MIG mode is in pending enable state", "after a reset of the GPU"),
    ],
)
def test_what_the_driver_refuses_ends_it(node: Site, ending: str, text: str, said: str) -> None:
    node.beside(".says").write_text(text)
    node.beside(ending).write_text(text)
    code, output = node.mig("gpu-1", "0", "1g.5gb", "--yes")
    assert code == 2
    assert said in output
    assert node.calls == ["-i 0 -mig 1"]
