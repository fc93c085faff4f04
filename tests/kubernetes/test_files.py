"""Files that are sent along with a job reach its Pod before its program starts."""

import io
import tarfile
from pathlib import Path

import pytest
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.statuses import Phase
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
MUCH = bytes(range(256)) * 8192


def packed(place: Path) -> str:
    with tarfile.open(place, "w:gz") as archive:
        for name, content in (("data/much.bin", MUCH), ("b c.txt", b"here\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return str(place)


async def test_program_finds_its_files_in_its_folder(rig: KubernetesRig, tmp_path: Path) -> None:
    looks = ("sh", "-c", "pwd; cat 'b c.txt'; wc -c <data/much.bin; ls -A ..")
    request = rig.start_request(Behaviour(), command=looks, bundle_path=packed(tmp_path / "files.tar.gz"))
    ended = await rig.ended(request)
    assert ended.exit_code == 0, ended
    folder = f"/home/ada/jobs/{request.workload_id}"
    assert await rig.lines(request.attempt_id) == [folder, "here", str(len(MUCH)), request.workload_id]


async def test_files_arrive_although_the_engine_starts_again(rig: KubernetesRig, tmp_path: Path) -> None:
    looks = ("sh", "-c", "cat 'b c.txt'; sleep 300")
    request = rig.start_request(Behaviour(), command=looks, bundle_path=packed(tmp_path / "files.tar.gz"))
    await (await rig.engine()).start(request)
    await rig.restart()
    await rig.phase(request.attempt_id, Phase.RUNNING)

    async def has_read() -> bool:
        return await rig.lines(request.attempt_id) == ["here"]

    await rig.until(has_read, "it read its files")


async def test_archive_that_is_none_ends_the_attempt_with_the_reason(rig: KubernetesRig, tmp_path: Path) -> None:
    (tmp_path / "files.tar.gz").write_bytes(b"no archive")
    request = rig.start_request(Behaviour(), bundle_path=str(tmp_path / "files.tar.gz"))
    ended = await rig.ended(request)
    assert ended.exit_code == 1
    assert "cannot be unpacked" in str(ended.reason)
