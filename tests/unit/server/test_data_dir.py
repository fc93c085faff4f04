"""The data folder: private, held by one server, and a sentence for every way in which it cannot be used."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from commonage.server.data_dir import DataDirError, Running, prepare, running_server, sentence


def test_it_is_made_private_with_its_folders(tmp_path: Path) -> None:
    with prepare(tmp_path / "a" / "data") as data:
        assert stat.S_IMODE(data.path.stat().st_mode) == 0o700
        assert data.folder("runs").is_dir()
        assert data.logs.is_dir()


def test_a_folder_that_others_may_read_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with prepare(tmp_path / "data") as data:
        assert stat.S_IMODE(data.path.stat().st_mode) == 0o700


def test_a_second_server_is_told_who_is_there(tmp_path: Path) -> None:
    with prepare(tmp_path) as data:
        data.announce(Running(os.getpid(), "gpu-1", 1.0, url="http://127.0.0.1:8000"))
        with pytest.raises(DataDirError) as caught:
            prepare(tmp_path)
    assert f"process {os.getpid()} on gpu-1, at http://127.0.0.1:8000" in str(caught.value)
    assert "--data-dir" in str(caught.value)
    prepare(tmp_path).close()


def test_the_lock_of_a_dead_server_is_free(tmp_path: Path) -> None:
    program = (
        "import sys, os, pathlib\nfrom commonage.server.data_dir import prepare\n"
        "held = prepare(pathlib.Path(sys.argv[1]))\nos._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    assert running_server(tmp_path) is None
    with prepare(tmp_path) as data:
        assert data.was_killed
    with prepare(tmp_path) as data:
        assert not data.was_killed, "the last one closed it"


def test_what_runs_is_found_and_what_does_not_is_none(tmp_path: Path) -> None:
    assert running_server(tmp_path / "none") is None
    with prepare(tmp_path) as data:
        found = running_server(tmp_path)
        assert found is not None
        assert (found.pid, found.hub_url) == (os.getpid(), "")
        data.announce(Running(7, "here", 1.0, hub_url="http://127.0.0.1:5"))
        again = running_server(tmp_path)
        assert again is not None
        assert again.hub_url == "http://127.0.0.1:5"
    assert running_server(tmp_path) is None


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path).close()
    (tmp_path / "layout").write_text("7\n")
    with pytest.raises(DataDirError, match=r"A newer Commonage wrote .* \(layout 7; this version knows up to 1\)"):
        prepare(tmp_path)
    (tmp_path / "layout").write_text("x\n")
    with pytest.raises(DataDirError, match="has no version number"):
        prepare(tmp_path)
    (tmp_path / "layout").write_text("1\n")
    prepare(tmp_path).close()  # the refusals gave the lock back


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DataDirError, match="is not a folder"):
        prepare(tmp_path / "data")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "The disk of /d is full"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "read-only file system"),
        (errno.EACCES, f"This user (uid {os.geteuid()}) may not write to /d"),
        (errno.EIO, "Cannot use the data folder /d: Input/output error"),
    ],
)
def test_every_trouble_has_its_sentence(number: int, said: str) -> None:
    assert said in sentence(OSError(number, os.strerror(number), "/d"), Path("/d"))


def test_a_full_disk_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataDirError, match="is full"):
        prepare(tmp_path / "data")
    assert not (tmp_path / "data" / ".probe").exists()
    monkeypatch.undo()
    prepare(tmp_path / "data").close()
