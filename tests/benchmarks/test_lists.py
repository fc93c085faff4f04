"""The changed lists of the placement benchmark, on a tiny trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.placement.lists import generated, published, scenario
from commonage.domain.errors import InvalidInput

HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nodes = "".join(f"n{i},32000,65536,4,{'T4' if i % 2 else 'G2'}\n" for i in range(30))
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}")
    sizes = ["1,460", "1,1000", "2,1000", "1,300", "0,0"] * 40
    for name, model in (("default", ""), ("gpuspec10", "T4")):
        rows = "".join(f"p{i},2000,2048,{size},{model if size[0] == '1' else ''}\n" for i, size in enumerate(sizes))
        (tmp_path / f"openb_pod_list_{name}.csv").write_text(HEAD + rows)
    return tmp_path


def test_every_list_is_the_same_when_made_again(folder: Path) -> None:
    for name in (*published(folder), *generated(folder)):
        first = scenario(folder, name)
        scenario.cache_clear()
        assert first.workloads == scenario(folder, name).workloads
        assert first.workloads


@pytest.mark.parametrize("percent", [5, 33, 50])
def test_part_of_the_workloads_is_bound_to_models(folder: Path, percent: int) -> None:
    workloads = [one for one in scenario(folder, f"bound-{percent}").workloads if one.gpu]
    assert sum(one.gpu.model is not None for one in workloads if one.gpu) == len(workloads) * percent // 100


def test_multi_gpu_list_requests_half_of_the_gpus_together(folder: Path) -> None:
    gpus = [one.gpu for one in scenario(folder, "multi-gpu").workloads if one.gpu]
    several = sum(gpu.whole for gpu in gpus if gpu.whole > 1)
    assert several / sum(gpu.whole or gpu.fraction_milli / 1000 for gpu in gpus) == pytest.approx(0.5, abs=0.05)


def test_sample_of_the_nodes_keeps_the_workloads(folder: Path) -> None:
    whole, sample = scenario(folder, "default"), scenario(folder, "default", 10)
    assert len(sample.nodes) == 10
    assert sample.workloads == whole.workloads


def test_unknown_list_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="no list 'long'"):
        scenario(folder, "long")
