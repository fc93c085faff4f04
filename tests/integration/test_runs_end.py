"""A run of the tests ends by itself and names the test that crashed or hung, whatever that does to its worker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEALTHY = "def test_healthy(): pass\n"
CRASHES = "import os\ndef test_culprit(): os._exit(3)\n"
HANGS = "import time\ndef test_culprit(): time.sleep(3600)\n"
STOPS = "import os, signal\ndef test_culprit(): os.kill(os.getpid(), signal.SIGSTOP)\n"
# PyDLL keeps the interpreter's lock, so no thread of the worker can run.
LOCKS = "import ctypes\ndef test_culprit(): ctypes.PyDLL(None).sleep(3600)\n"
CRASHES_AFTERWARDS = """
import os, pytest
@pytest.fixture(scope="session", autouse=True)
def end():
    yield
    os._exit(3)
def test_last(): pass
"""
SETTINGS = """[pytest]
timeout = {timeout}
timeout_method = thread
worker_silent_max_s = {silent}
"""


def run(folder: Path, culprit: str, timeout: int, silent: int) -> tuple[int, str]:
    """Run a healthy file, the one with the culprit and many healthy ones, as scripts/test does."""
    (folder / "pytest.ini").write_text(SETTINGS.format(timeout=timeout, silent=silent))
    (folder / "test_0.py").write_text(HEALTHY)
    (folder / "test_1.py").write_text(culprit + HEALTHY)
    for number in range(2, 8):
        (folder / f"test_{number}.py").write_text(HEALTHY)
    script = (ROOT / "scripts/test").read_text()
    options = script[script.index("--max-worker-restart") : script.index('"$@"')].replace("\\\n", " ").split()
    plugins = [word for name in ("xdist", "pytest_timeout", "tests.hanging") for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", "-n", "2", *options]
    ended = subprocess.run(
        [*command, "--rootdir", folder, "-c", folder / "pytest.ini", folder],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("culprit", "timeout", "silent", "shows"),
    [
        (CRASHES, 200, 200, "crashed while running"),
        (HANGS, 10, 200, "in test_culprit"),
        (HANGS, 200, 20, "in test_culprit"),
        (LOCKS, 10, 20, "in test_culprit"),
        (STOPS, 10, 20, "reported nothing"),
    ],
    ids=["crash", "hang", "hang without timeout", "hang with the interpreter's lock", "stopped worker"],
)
def test_a_run_ends_and_names_the_culprit(tmp_path: Path, culprit: str, timeout: int, silent: int, shows: str) -> None:
    code, said = run(tmp_path, culprit, timeout, silent)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "test_1.py::test_culprit" in said
    assert shows in said


def test_a_run_fails_when_a_worker_crashes_after_its_last_test(tmp_path: Path) -> None:
    code, said = run(tmp_path, CRASHES_AFTERWARDS, 200, 200)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "ended without being told to" in said


def test_a_run_of_healthy_tests_passes(tmp_path: Path) -> None:
    code, said = run(tmp_path, HEALTHY, 200, 200)
    assert code == pytest.ExitCode.OK, said
