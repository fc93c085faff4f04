"""Builds the fake libnvidia-ml.so.1 and runs the real `NvmlDevices` on it, in a process of its own.

A process of its own because the loader looks at LD_LIBRARY_PATH once, at its start, and because pynvml
keeps the library it has loaded. `NvmlProcess` passes each call on, so that a test has the port in its hands
and may change what the driver says between two calls.
"""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml

from commonage.domain.nodes import Allocation, Device, Share
from commonage.ports.devices import DeviceSample, ShareAssignment

SOURCES = Path(__file__).with_name("source")
LIBRARY = "libnvidia-ml.so.1"
COMPILE = ("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}")

# The other process: calls come pickled on its standard input, answers go back on its standard output.
_LOOP = """
import pickle, sys
calls, answers = sys.stdin.buffer, sys.stdout.buffer
from commonage.gpu.nvml.devices import NvmlDevices
devices = None
while True:
    try:
        name, args = pickle.load(calls)
    except EOFError:
        break
    try:
        if name == "open":
            devices, answer = NvmlDevices(**args[0]), None
        else:
            answer = getattr(devices, name)
            answer = answer(*args) if callable(answer) else answer
        answers.write(pickle.dumps((answer, None)))
    except Exception as error:
        answers.write(pickle.dumps((None, error)))
    answers.flush()
"""


def build_library(folder: Path) -> Path:
    """Compile the fake into `folder`. Calls that pynvml knows and the fake does not answer NOT_SUPPORTED."""
    sources = sorted(SOURCES.glob("*.c"))
    known = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text()))
    text = "\n".join(source.read_text() for source in sources)
    own = set(re.findall(r"^(?:int|const char \*) ?(nvml\w+)\(", text, re.MULTILINE))
    rest = folder / "rest.c"
    rest.write_text("".join(f"int {name}(void) {{ return 3; }}\n" for name in sorted(known - own)))
    library = folder / LIBRARY
    files = [str(file) for file in (*sources, rest)]
    subprocess.run([*COMPILE, "-o", str(library), *files, "-lpthread"], check=True)
    return library


class FakeDriver:
    """The state file of the fake: what the driver of this machine says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def says(self, *lines: str) -> None:
        """From now on. Replaced in one go, so that no call reads half of it."""
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.path)


class NvmlProcess:
    """The device port, kept by an `NvmlDevices` in another process that loads the library of `folder`."""

    def __init__(self, folder: Path, state: Path, **settings: Any) -> None:
        variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML_STATE": str(state)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self.call("open", settings)
        except BaseException:
            self.end()
            raise

    def call(self, name: str, *args: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((name, args), self._process.stdin)
        self._process.stdin.flush()
        answer, error = pickle.load(self._process.stdout)
        if error is not None:
            raise error
        return answer

    @property
    def versions(self) -> str:
        return self.call("versions")

    def inventory(self) -> Sequence[Device]:
        return self.call("inventory")

    def measure(self) -> Sequence[DeviceSample]:
        return self.call("measure")

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        return self.call("environment", shares)

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self.call("note_allocations", allocations)

    def resume(self, uuid: str | None = None) -> None:
        self.call("resume", uuid)

    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        return self.call("enforce", hold)

    def release(self, attempt_id: str) -> None:
        self.call("release", attempt_id)

    def settle(self, live: Collection[str]) -> None:
        self.call("settle", live)

    def enforced(self) -> Collection[str]:
        return self.call("enforced")

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        return self.call("take_warnings")

    def close(self) -> None:
        self.call("close")

    def end(self) -> None:
        """End the other process, which outlives `close` so that a test may see what that left."""
        self._process.communicate(timeout=30)
