"""Which file of the kernel's pauses a container, by what the kernel says of one of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonage.agent.fencing.freezer import Freezer, freezer_of

ONE, OTHER = "a" * 64, "b" * 64
V1, V2 = ("FROZEN", "THAWED"), ("1", "0")


@pytest.mark.parametrize(
    ("groups", "place", "words"),
    [
        (f"9:pids:/docker/{ONE}\n6:freezer:/docker/{ONE}\n0::/\n", f"freezer/docker/{ONE}/freezer.state", V1),
        (f"0::/system.slice/docker-{ONE}.scope\n", f"system.slice/docker-{ONE}.scope/cgroup.freeze", V2),
        # With groups of its own inside, and with both kinds at once, of which the older has the freezer.
        (f"0::/docker/{ONE}/init\n", f"docker/{ONE}/cgroup.freeze", V2),
        (f"6:freezer:/docker/{ONE}/x\n0::/docker/{ONE}\n", f"freezer/docker/{ONE}/freezer.state", V1),
    ],
)
def test_a_container_is_paused_by_its_own_group(
    tmp_path: Path, groups: str, place: str, words: tuple[str, str]
) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    assert freezer_of(groups, ONE, tmp_path) is None, "there is none"
    file.write_text("")
    found = freezer_of(groups, ONE, tmp_path)
    assert found == Freezer(file, *words)
    assert found.set_paused(True)
    assert file.read_text() == words[0]
    assert found.set_paused(False)
    assert file.read_text() == words[1]
    assert freezer_of(groups, OTHER, tmp_path) is None, "that of nobody else"


def test_where_the_kernel_refuses_it_is_not_paused(tmp_path: Path) -> None:
    assert not Freezer(tmp_path / "nowhere" / "freezer.state", *V1).set_paused(True)
