"""Processes of this node: checking identity, starting shims, sending signals.

Called by the engine; knows nothing of attempts but the shim's arguments.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from errno import E2BIG
from functools import cache
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.engines.rundir.proc import process_info

_SHIM = str(Path(__file__).with_name("shim.sh"))
_FILES = 16_384
_PR_CAPBSET_DROP, _CAP_SYS_RESOURCE = 24, 24
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


def open_process(pid: int, began: int) -> int | None:
    """Return a pidfd of exactly the process that began then; None if it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Checked after opening: from now on the number cannot pass to another process unnoticed.
    info = process_info(pid)
    if info is not None and info.began == began:
        return descriptor
    os.close(descriptor)
    return None


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def raise_file_limit() -> None:
    """Raise the limit of open files for thousands of attempts: each running one is watched by a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def keep_children_within_quotas() -> None:
    """Take CAP_SYS_RESOURCE from all programs that are started from now on: ext4 lets root write beyond a quota by it.

    Call it in the main thread before others begin. Without the right to, the programs do not have it anyway.
    """
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_RESOURCE, 0, 0, 0)


def leave_signals_alone() -> None:
    """Give child processes the usual signals, even if the server must ignore some (nohup, `&` in a script).

    exec resets a handler of this process, but an ignored signal stays ignored, and then no kernel could be interrupted.
    Python sets handlers in the main thread only; elsewhere they stay unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def reap(pid: int) -> None:
    """Reap an ended child, if it was ours."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def spawn_shim(
    run: Path, groups: Sequence[str], command: Sequence[str], environment: Mapping[str, str], cwd: Path
) -> int:
    """Start a shim for the run folder; return its pid, for the caller to reap. Raises EngineFailure.

    No preexec_fn and no change of user, so that Python can use vfork: the cost does not grow with our memory.
    """
    arguments = ["/bin/sh", _SHIM, str(run), boot_id(), ":".join(groups), *command]
    log = os.open(run / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        shim = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        # It may outlive us, and is reaped by its number: subprocess must not complain or reap it first.
        shim.returncode = 0
        return shim.pid
    except ValueError as error:
        raise EngineFailure(f"the command or a variable cannot be passed on: {error}") from error
    except OSError as error:
        # A too long argument list is permanent; a lack of memory or processes may pass.
        may_pass = error.errno != E2BIG
        raise EngineFailure(f"the system did not start it: {error.strerror}", retryable=may_pass) from error
    finally:
        os.close(log)
