"""Follows docs/contribute/add-a-policy.md: its code, its line in the registry, and the result."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commonage.domain.nodes import Device, Node, NodeReport, NodeState
from commonage.domain.requests import Request, parse_gpus
from commonage.replay.policies import maker_of
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.policies import registry
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import Maker

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/contribute/add-a-policy.md").read_text(), re.DOTALL)


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    """The page's policy, loaded as the page says."""
    (tmp_path / "quiet.py").write_text(BLOCKS[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield maker_of("quiet:Quiet", registry.POLICIES)
    del sys.modules["quiet"]


def two_nodes() -> Grid:
    return Grid(
        [
            Node(
                name, "site", "fake", NodeState.READY, NodeReport(name, 8000, 65536, (Device(name, 0, "T4", 16384),)), 0
            )
            for name in ("near", "far")
        ]
    )


def test_policy_of_the_page_prefers_nodes_with_fewest_workloads(quiet: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made_by = re.fullmatch(r'\s*"(\w+)": (\w+),\s*', BLOCKS[1]).groups()  # type: ignore[union-attr]  # it is there
    assert made_by == quiet.__name__
    monkeypatch.setitem(registry.POLICIES, name, quiet)
    grid = two_nodes()
    policy = registry.POLICIES[name](grid, WorkloadMix(), 42)
    shape = grid.shape(Request(1000, 1024, parse_gpus("4GiB")))
    places = []
    for number in range(5):
        node = int(np.argmin(policy.costs(shape)))
        grid.take(grid.allocation(shape, node, policy.devices(shape, node), f"attempt-{number}", 0.0))
        places.append(grid.nodes[node].name)
    assert places == ["near", "far", "near", "far", "near"]


def test_page_names_only_existing_files() -> None:
    text = (ROOT / "docs/contribute/add-a-policy.md").read_text()
    named = set(re.findall(r"`(placement/[\w/]+\.py)`", text)) | set(re.findall(r"`(tests/[\w/]+(?:\.py|/))`", text))
    named = {name if name.startswith("tests") else f"src/commonage/{name}" for name in named}
    missing = [name for name in sorted(named) if not (ROOT / name).exists()]
    assert not missing
