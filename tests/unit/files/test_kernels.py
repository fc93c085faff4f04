"""The files of a kernel: how it starts, and the packages that its user adds."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from commonage.files.kernels import ADDED, START, packages_folder, packages_script, start_script

_LAUNCHER = "import sys, added\nprint(sys.prefix, added.VALUE)\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel that prints its prefix, and the value of the module `added` that it finds."""
    prefix = tmp_path / "kernels" / "it's a kernel"
    venv.create(prefix, symlinks=True)
    [packages] = prefix.glob("lib/python*/site-packages")
    (packages / "ipykernel_launcher.py").write_text(_LAUNCHER)
    (packages / "added.py").write_text("VALUE = 'own'\n")
    (prefix / START).write_text(start_script("python3", str(prefix)))
    (prefix / START).chmod(0o755)
    (prefix / ADDED).write_text(packages_script())
    return prefix


def started(kernel: Path, home: Path, packages: str = "") -> str:
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "COMMONAGE_PACKAGES": packages}
    done = subprocess.run([kernel / START, "-f", "x"], env=variables, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_kernel_starts_without_added_packages_unless_they_are_allowed(kernel: Path, tmp_path: Path) -> None:
    assert started(kernel, tmp_path) == f"{kernel} own"
    assert not (tmp_path / ".commonage").exists()


def test_added_packages_hide_those_of_the_kernel_until_they_are_deleted(kernel: Path, tmp_path: Path) -> None:
    folder = packages_folder("lab/nlp:2")
    own = tmp_path / folder / "python3"
    assert ":" not in folder
    assert started(kernel, tmp_path, folder) == f"{own} own"
    [packages] = own.glob("lib/python*/site-packages")
    (packages / "added.py").write_text("VALUE = 'mine'\n")
    assert started(kernel, tmp_path, folder) == f"{own} mine"
    subprocess.run(["rm", "-rf", own], check=True)
    assert started(kernel, tmp_path, folder) == f"{own} own"


def test_a_kernel_starts_where_no_packages_can_be_kept(kernel: Path, tmp_path: Path) -> None:
    (tmp_path / ".commonage").write_text("a file in the way")
    assert started(kernel, tmp_path, packages_folder("x")) == f"{kernel} own"


def test_the_added_packages_follow_a_new_kernel(kernel: Path, tmp_path: Path) -> None:
    folder = packages_folder("x")
    own = tmp_path / folder / "python3"
    started(kernel, tmp_path, folder)
    (own / "base").write_text("/opt/an/earlier/kernel\n")
    [packages] = own.glob("lib/python*/site-packages")
    (packages / "commonage-base.pth").write_text("/opt/an/earlier/kernel\n")
    assert started(kernel, tmp_path, folder) == f"{own} own"
    assert str(kernel) in (packages / "commonage-base.pth").read_text()
    assert sys.version in (own / "base").read_text()
