"""The folder of the openb trace: nodes, workloads, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.placement.openb import folder_of, lists_in, read_list, read_nodes
from commonage.domain.errors import InvalidInput
from commonage.domain.requests import GpuRequest, Request

NODES = "sn,cpu_milli,memory_mib,gpu,model\nb,8000,4096,2,T4\na,64000,8192,1,V100M32\n"
WORKLOADS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p-2,4000,512,2,1000,T4|V100M32
p-1,6000,1024,1,460,
p-3,1000,64,0,0,
p-4,1000,64,1,1000,|T4|
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_short.csv").write_text(WORKLOADS)
    (tmp_path / "openb_pod_list_default.csv").write_text(WORKLOADS)
    return tmp_path


def test_reads_nodes_with_device_memory(folder: Path) -> None:
    first, second = read_nodes(folder)
    assert (first.name, first.report.cpus_milli, first.report.memory_mib) == ("a", 64_000, 8192)
    assert [(device.model, device.memory_mib) for device in first.report.devices] == [("V100M32", 32 * 1024)]
    assert [device.uuid for device in second.report.devices] == ["b/0", "b/1"]


def test_reads_workloads_by_name(folder: Path) -> None:
    assert read_list(folder, "short") == [
        Request(6000, 1024, GpuRequest(fraction_milli=460)),
        Request(4000, 512, GpuRequest(whole=2, model="T4|V100M32")),
        Request(1000, 64),
        Request(1000, 64, GpuRequest(whole=1, model="T4")),
    ]


def test_accepts_the_folder_or_its_parent(folder: Path, tmp_path: Path) -> None:
    assert folder_of(folder) == folder
    above = tmp_path / "traces"
    above.mkdir()
    (above / "openb").symlink_to(folder)
    assert folder_of(above) == above / "openb"
    assert lists_in(folder) == ["default", "short"]


def test_missing_or_wrong_folder_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder; name the folder with openb_node_list"):
        folder_of(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="has no openb_node_list_gpu_node"):
        folder_of(tmp_path)


def test_unknown_list_raises_an_error(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="has no list 'long'; lists: default, short"):
        read_list(folder, "long")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,cpu_milli\n", "has no column memory_mib, num_gpu, gpu_milli"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\nq,many,1,0,0\n", "line 3: expected a number"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1\n", "line 2: expected a number"),
    ],
)
def test_invalid_file_raises_a_precise_error(folder: Path, text: str, message: str) -> None:
    (folder / "openb_pod_list_bad.csv").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_list(folder, "bad")


def test_binary_file_raises_an_error(folder: Path) -> None:
    (folder / "openb_pod_list_bad.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="is not a CSV file"):
        read_list(folder, "bad")
