"""Builds the fake libcuda.so.1 for one node, and a folder with it and the fake NVML library."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.nvml.harness import FakeDriver

SOURCE = Path(__file__).with_name("cuda.c")
LIBRARY = "libcuda.so.1"
_COMPILE = ("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}")


def build_cuda(library: Path, state: str) -> None:
    """The library, which looks for its gpus in the file `state`."""
    subprocess.run([*_COMPILE, f'-DSTATE="{state}"', "-o", str(library), str(SOURCE)], check=True)


class FakeNode:
    """A node with GPUs: its folder of libraries and its state. `nvml` is the built NVML library's file."""

    def __init__(self, folder: Path, nvml: Path) -> None:
        self.folder = folder
        self.libraries = folder / "lib"
        self.driver = FakeDriver(folder / "nvml.state")
        self.libraries.mkdir(parents=True)
        shutil.copy(nvml, self.libraries)
        build_cuda(self.libraries / LIBRARY, str(self.driver.path))

    def stops(self, *lines: str) -> None:
        """Set the limits that the CUDA library ignores, and the size of a context."""
        self._beside(".cuda").write_text("\n".join(lines) + "\n")

    def used(self) -> Sequence[str]:
        return self._lines(".used")

    def limits(self) -> Sequence[str]:
        return self._lines(".limits")

    def modes(self) -> Sequence[str]:
        return self._lines(".modes")

    def variables(self, *programs: Path) -> dict[str, str]:
        """For a process on this machine; `programs` are folders that come first on its PATH."""
        return {
            **os.environ,
            "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
            "LD_LIBRARY_PATH": str(self.libraries),
            "FAKE_NVML_STATE": str(self.driver.path),
        }

    def _beside(self, ending: str) -> Path:
        return self.driver.path.with_name(self.driver.path.name + ending)

    def _lines(self, ending: str) -> Sequence[str]:
        try:
            return self._beside(ending).read_text().splitlines()
        except FileNotFoundError:
            return []
