"""When a fork of a waiting parent is like a program that is started afresh."""

from pathlib import Path

import pytest

from commonage.engines.process.translate import Program
from commonage.engines.process.warm.sessions import PROGRAM, may_fork

PROGRAMS = Path("/env/bin")
STARTED_WITH = {
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "PYTHONUNBUFFERED": "1",
    "PATH": "/env/bin:/usr/bin",
    "HTTPS_PROXY": "proxy",
}
SESSION = {
    "LANG": "C.UTF-8",
    "HOME": "/workspaces/ada",
    "PYTHONUNBUFFERED": "1",
    "PYTHON_CPU_COUNT": "2",
    "PATH": "/env/bin:/bin",
    "HTTPS_PROXY": "proxy",
    "JUPYTERHUB_API_TOKEN": "x",
}


def may(command: tuple[str, ...] = (PROGRAM, "--allow-root"), read: tuple[str, ...] = (), **more: str | None) -> bool:
    variables = {name: value for name, value in {**SESSION, **more}.items() if value is not None}
    return may_fork(Program(command, variables), PROGRAMS, STARTED_WITH, frozenset(read))


def test_a_session_is_forked() -> None:
    assert may()
    assert may(read=("TORNADO_EXTENSION", "HTTPS_PROXY"))


def test_a_session_with_a_share_of_a_gpu_is_forked() -> None:
    assert may(PYTHONPATH="/gpus/site", COMMONAGE_GPU_SITE="/gpus/site")
    assert not may(PYTHONPATH="/gpus/site:/workspaces/ada/lib", COMMONAGE_GPU_SITE="/gpus/site")
    assert not may(PYTHONPATH="/workspaces/ada/lib")


def test_nothing_but_the_environments_own_session_program_is_forked() -> None:
    assert not may(command=("python", "-m", "jupyterhub.singleuser"))
    assert not may(PATH="/workspaces/ada/bin:/env/bin")
    assert not may(PATH=None)


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "LD_PRELOAD", "LC_ALL", "LANG", "OPENSSL_CONF"]
)
def test_variables_read_at_startup_must_match(name: str) -> None:
    assert not may(**{name: "else"})


def test_variables_read_at_startup_must_exist() -> None:
    assert not may(LANG=None)
    assert not may(PYTHONUNBUFFERED=None)


def test_variables_read_during_import_must_match() -> None:
    assert not may(read=("HOME",))
    assert not may(read=("HTTPS_PROXY",), HTTPS_PROXY="another")
    assert not may(read=("TORNADO_EXTENSION",), TORNADO_EXTENSION="0")
    assert not may(read=("*",))


def test_unsupported_program_starts_cold() -> None:
    assert not may(command=(PROGRAM, "a\0b"))
    assert not may(NAME="a\0b")
    assert not may(**{"A=B": "c"})
