"""Makes what takes minutes to make while other tests run. Called by conftest.py.

A module says what its tests need with `@pytest.mark.made_ahead("deploy images")`; the names stand in MAKERS. A parallel
run begins with all of it, in processes of their own. A test that comes too early waits for it before its time counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_makers: list[subprocess.Popen[bytes]] = []


def _deploy_images() -> Path:
    from tests.integration.deployed import archives

    return archives()


def _worker_base() -> Path:
    from tests.contract.harness.worker import base

    return base()


def _jupyter_image() -> Path:
    from tests.contract.harness.jupyter_image import archive

    return archive()


MAKERS: dict[str, Callable[[], Path]] = {
    "deploy images": _deploy_images,
    "worker base": _worker_base,
    "jupyter image": _jupyter_image,
}


def needed(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("made_ahead") for name in mark.args]


def begin(items: Iterable[pytest.Item]) -> None:
    for name in dict.fromkeys(name for item in items for name in needed(item)):
        command = [sys.executable, "-m", "tests.made_ahead", name]
        _makers.append(
            subprocess.Popen(
                command,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )


def wait_for(item: pytest.Item) -> None:
    """Have what this test needs. One that cannot be made shows why in the test's own setup."""
    for name in needed(item):
        with suppress(Exception):
            MAKERS[name]()


def end() -> None:
    """A run that ends early leaves no running process."""
    for maker in _makers:
        if maker.poll() is None:
            os.killpg(maker.pid, signal.SIGKILL)
            maker.wait()


if __name__ == "__main__":
    MAKERS[sys.argv[1]]()
