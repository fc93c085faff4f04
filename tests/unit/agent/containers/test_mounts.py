"""Folders of attempts that an agent mounts: what was opened stays what it is, and a link is none of it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.harness.leftovers import unmount_below

from commonage.agent.containers import mounts as mounting
from commonage.agent.containers.mounts import Mounts
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.nodes import FoldersNotMountable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    for name in ("workspaces/ada", "attempts/w-1/control", "elsewhere"):
        (tmp_path / "shared" / name).mkdir(parents=True)
    (tmp_path / "shared/attempts/w-1/log").write_text("said\n")
    (tmp_path / "shared/workspaces/ada/mine").write_text("mine")
    (tmp_path / "shared/elsewhere/key").write_text("secret")
    return tmp_path / "shared"


@pytest.fixture
def mounts(tmp_path: Path, shared: Path) -> Iterator[Mounts]:
    yield Mounts(tmp_path / "mounts", str(shared))
    unmount_below(tmp_path / "mounts")


def sources(shared: Path) -> list[tuple[str, str]]:
    mine = shared / "attempts/w-1"
    return [("workspace", f"{shared}/workspaces/ada"), ("control", f"{mine}/control"), ("log", f"{mine}/log")]


def is_mounted(folder: Path) -> bool:
    return any(
        line.split()[4].startswith(str(folder)) for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )


def test_mount_stays_when_its_path_becomes_a_link(mounts: Mounts, shared: Path, tmp_path: Path) -> None:
    places = mounts.mount("w-1", sources(shared))
    assert places == tuple(str(tmp_path / "mounts" / "w-1" / name) for name in ("workspace", "control", "log"))
    (shared / "workspaces/ada").rename(shared / "workspaces/moved")
    (shared / "workspaces/ada").symlink_to(shared / "elsewhere")
    assert os.listdir(places[0]) == ["mine"]
    Path(places[2]).write_text("more\n")
    assert (shared / "attempts/w-1/log").read_text() == "more\n"
    assert stat.S_IMODE((tmp_path / "mounts").stat().st_mode) == 0o700, "no other user of the node can read it"


def test_mounts_allow_no_devices_and_no_setuid(mounts: Mounts, shared: Path) -> None:
    os.mknod(shared / "workspaces/ada/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    [place] = mounts.mount("w-1", sources(shared)[:1])
    assert os.statvfs(place).f_flag & os.ST_NOSUID
    with pytest.raises(PermissionError):
        os.open(f"{place}/null", os.O_RDONLY)


def test_mount_and_remove_are_idempotent(mounts: Mounts, shared: Path, tmp_path: Path) -> None:
    first = mounts.mount("w-1", sources(shared))
    assert mounts.mount("w-1", sources(shared)) == first
    assert Mounts(tmp_path / "mounts", str(shared)).mount("w-1", sources(shared)) == first, "nor is a restart forgotten"
    assert mounts.all() == ["w-1"]
    mounts.remove(["w-1", "w-2", "../elsewhere"])
    mounts.remove(["w-1"])
    assert not is_mounted(tmp_path / "mounts")
    assert mounts.all() == []
    assert (shared / "workspaces/ada/mine").exists(), "what was mounted is not what is removed"


def test_replaced_folder_is_mounted_again(mounts: Mounts, shared: Path) -> None:
    mounts.mount("w-1", sources(shared))
    (shared / "attempts/w-1/control").rename(shared / "attempts/w-1/old")
    (shared / "attempts/w-1/control").mkdir()
    (shared / "attempts/w-1/control/new").touch()
    assert os.listdir(mounts.mount("w-1", sources(shared))[1]) == ["new"]


@pytest.mark.parametrize("place", ["workspaces/ada", "workspaces", "attempts/w-1/log", "attempts/w-1", "attempts"])
def test_link_is_refused_and_nothing_stays_mounted(mounts: Mounts, shared: Path, tmp_path: Path, place: str) -> None:
    (shared / place).rename(tmp_path / "before")
    (shared / place).symlink_to(tmp_path / "before")
    with pytest.raises(EngineFailure, match="link") as caught:
        mounts.mount("w-1", sources(shared))
    assert not caught.value.is_retryable
    assert not is_mounted(tmp_path / "mounts")


def test_refuses_pipes(mounts: Mounts, shared: Path) -> None:
    os.mkfifo(shared / "pipe")
    with pytest.raises(EngineFailure, match="plain file"):
        mounts.mount("w-1", [("volume-0", f"{shared}/pipe")])


@pytest.mark.parametrize(
    "path", ["relative", "{shared}/../elsewhere", "{shared}/workspaces/../../x", "/proc/self/root"]
)
def test_refuses_relative_paths_and_dot_dot(mounts: Mounts, shared: Path, path: str) -> None:
    with pytest.raises(EngineFailure, match="not mounted"):
        mounts.mount("w-1", [("volume-0", path.format(shared=shared))])


@pytest.mark.parametrize(("attempt", "name"), [("../w", "log"), ("w-1", "../log"), ("", "log"), ("w-1", "a/b")])
def test_refuses_names_that_lead_out_of_the_root(mounts: Mounts, shared: Path, attempt: str, name: str) -> None:
    with pytest.raises(EngineFailure, match="named"):
        mounts.mount(attempt, [(name, str(shared))])


def test_missing_source_is_retryable(mounts: Mounts, shared: Path) -> None:
    with pytest.raises(EngineFailure) as caught:
        mounts.mount("w-1", [("volume-0", f"{shared}/later")])
    assert caught.value.is_retryable


def test_stale_mounts_are_removed_after_a_while(mounts: Mounts, shared: Path) -> None:
    mounts.mount("w-1", sources(shared))
    mounts.mount("w-2", sources(shared))
    long = 2 * mounting._STALE_AFTER_S
    mounts.remove_stale({"w-1"}, 0.0)
    mounts.remove_stale({"w-1"}, 1.0)
    assert sorted(mounts.all()) == ["w-1", "w-2"]
    mounts.remove_stale({"w-1"}, long)
    assert mounts.all() == ["w-1"]


def test_reports_a_fault_when_mounting_is_not_permitted(
    mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mounts.fault() is None
    assert mounts.all() == []

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(mounting, "_mount", refused)
    assert isinstance(mounts.fault(), FoldersNotMountable)
