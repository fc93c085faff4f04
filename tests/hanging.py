"""A pytest plugin that ends a parallel run whose worker hangs or crashes, and names the test. Loaded by conftest.py.

pytest-timeout ends a worker whose test takes too long, but its report goes to the worker's standard output, which is
lost. Here the worker prints its stacks where faulthandler does, and ends; xdist then reports the test as crashed and
ends the run. The process that distributes the tests covers the cases that no thread of the worker can: a
worker that is stopped, that hangs outside of any test, or in a C function that keeps the interpreter's lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key  # pytest's copy of stderr, which it does not capture
from pytest_timeout import is_debugging

SILENT_MAX_S = "worker_silent_max_s"
_DUMPS_WITHIN_S = 5.0


@dataclass
class _Worker:
    pid: int
    heard_at: float = field(default_factory=time.monotonic)
    reported: str = "no test"


class WorkerWatch:
    """Ends workers that report nothing for `silent_max_s` seconds."""

    def __init__(self, silent_max_s: float) -> None:
        self._silent_max_s = silent_max_s
        self._workers: dict[str, _Worker] = {}
        self._lost: list[str] = []
        self._over = threading.Event()

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        self._workers[node.gateway.id] = _Worker(node.gateway._io.popen.pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        worker = self._workers.pop(node.gateway.id, None)
        if error:
            after = f", after {worker.reported}" if worker else ""
            self._lost.append(f"worker {node.gateway.id} ended without being told to{after}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        for worker in self._workers.values():  # the first waits for the last
            worker.heard_at = time.monotonic()

    def pytest_runtest_logreport(self, report: Any) -> None:
        worker = self._workers.get(report.node.gateway.id) if hasattr(report, "node") else None
        if worker is not None:
            worker.heard_at, worker.reported = time.monotonic(), f"{report.nodeid} ({report.when})"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that lost a worker did not run all tests, also where no test was lost with it."""
        self._over.set()
        if self._lost and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._lost:
            terminalreporter.line(f"{line}; the tests that it still had were not run", red=True)

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._silent_max_s / 4)):
            for name, worker in list(self._workers.items()):
                if time.monotonic() - worker.heard_at > self._silent_max_s:
                    self._end(name, worker)

    def _end(self, name: str, worker: _Worker) -> None:
        said = f"worker {name} hangs: it reported nothing for {self._silent_max_s:.0f} s, last {worker.reported}"
        sys.__stderr__.write(f"\n{said}\n")
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGABRT)
            self._over.wait(_DUMPS_WITHIN_S)
            os.kill(worker.pid, signal.SIGKILL)  # a stopped process does not end on SIGABRT
        worker.heard_at = time.monotonic()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Set the timer of a test in a worker. The first result counts."""
    if "PYTEST_XDIST_WORKER" not in os.environ or settings.timeout <= 0:
        return None
    timer = threading.Timer(settings.timeout, _abort, [item.config.stash.get(fault_handler_stderr_fd_key, 2)])
    timer.daemon = True
    timer.start()
    item.cancel_timeout = timer.cancel  # type: ignore[attr-defined]  # where pytest-timeout looks for it
    return True


def _abort(stderr: int) -> None:
    """End this worker, and show what all threads do. With a signal that would be shown without the interpreter's lock,
    which can crash before it comes to the thread that hangs.
    """
    if not is_debugging():
        faulthandler.dump_traceback(stderr)
        os._exit(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SILENT_MAX_S, "seconds without a report after which a worker hangs", default="1200")


def pytest_configure(config: pytest.Config) -> None:
    is_distributing = bool(getattr(config.option, "dist", "no") != "no") and not hasattr(config, "workerinput")
    if is_distributing and not is_debugging():
        config.pluginmanager.register(WorkerWatch(float(config.getini(SILENT_MAX_S))), "worker-watch")
