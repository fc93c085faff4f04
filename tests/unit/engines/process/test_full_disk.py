"""The exit code of an attempt that ends while its disk is full, and others wait for any space that becomes free."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from commonage.engines.process.processes import _SHIM
from commonage.engines.process.warm.zygote import _write_exit
from commonage.engines.rundir.runs import _ROOM, RunFolder


def by_the_shim(run: Path) -> None:
    ran = subprocess.run(["/bin/sh", _SHIM, str(run), "boot", "", "/bin/sh", "-c", "exit 7"], check=False)
    assert ran.returncode == 7


def by_the_zygote(run: Path) -> None:
    _write_exit(str(run), 7)


@pytest.mark.parametrize("write", [by_the_shim, by_the_zygote])
@pytest.mark.parametrize("full", [False, True])
def test_exit_code_takes_the_reserved_space(tmp_path: Path, write: Callable[[Path], None], full: bool) -> None:
    (tmp_path / "room").write_bytes(_ROOM)
    reserved = os.stat(tmp_path / "room").st_ino
    if full:
        (tmp_path / "exit").symlink_to("/dev/full")  # every write fails, also once something was freed
    write(tmp_path)
    end = RunFolder(tmp_path, None).exit()
    assert end is not None
    assert (end.code, end.reason, end.oom) == (7, None, False)
    assert (os.stat(tmp_path / "exit").st_ino == reserved) is full
