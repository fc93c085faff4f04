"""The warm parent of sessions: a process that has imported what a Jupyter server needs, and forks.

Most of a session's start is imports, the same for all of an environment. This program is run by the environment's own
Python (so it uses the standard library only), imports once, and waits on a Unix socket for asks; for each it forks a
keeper, which does for the session what shim.sh does for other programs: claim the run folder, join the cgroups, wait,
write down how it ended. Called by warm.py: python -I zygote.py SOCKET jupyterhub-singleuser. Ends with the control
plane; the sessions do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
from typing import Any, NoReturn

# What `jupyterhub-singleuser` loads on its way to the first page. What an environment lacks is left out.
MODULES = (
    "jupyterhub.singleuser",
    "jupyterhub.singleuser.app",
    "jupyterhub.singleuser.extension",
    "jupyter_server.serverapp",
    "jupyter_server.services.contents.largefilemanager",
    "jupyter_server.services.events.handlers",
    "jupyter_server.services.kernels.handlers",
    "jupyter_server.services.kernels.websocket",
    "jupyter_server.services.sessions.handlers",
    "jupyter_server_terminals",
    "jupyter_server_proxy",
    "jupyterlab.labapp",
    "jupyterlab.extensions.pypi",
    "jupyter_lsp",
    "notebook_shim",
    "ipykernel.kernelspec",
    "nbconvert.exporters",
    "tornado.curl_httpclient",
    "sqlite3",
)
PR_SET_PDEATHSIG = 1
KEEP_REMAINS_S = 5.0  # so long the number of an ended keeper is not given to another process


def main() -> None:
    """Import, say so by listening, and fork until the control plane ends."""
    path, program = sys.argv[1], sys.argv[2]
    _end_with_parent()
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit("a module started a thread, and a process with threads must not fork")
    gc.collect()
    gc.freeze()  # what is here now stays shared with all sessions
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(64)
    _serve(listener, program)


def _end_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def _serve(listener: socket.socket, program: str) -> None:
    keepers: dict[int, float] = {}
    while True:
        ready, _, _ = select.select([listener], [], [], KEEP_REMAINS_S)
        for pid, born in list(keepers.items()):
            if time.monotonic() - born > KEEP_REMAINS_S and os.waitpid(pid, os.WNOHANG)[0]:
                del keepers[pid]
        if not ready:
            continue
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(5)
            ask = json.loads(_read_line(connection))
            pid = os.fork()
            if pid == 0:
                listener.close()
                connection.close()
                _keep(ask, program)
            keepers[pid] = time.monotonic()
            connection.sendall(b"%d\n" % pid)


def _read_line(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            raise ValueError("the ask broke off")
        parts.append(part)
    return b"".join(parts)


def _keep(ask: dict[str, Any], program: str) -> NoReturn:
    """The keeper: shim.sh in Python. Never returns."""
    run: str = ask["run"]
    try:
        os.setsid()
        log = os.open(os.path.join(run, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            began = stat.read().rpartition(")")[2].split()[19]
        try:
            claim = os.open(os.path.join(run, "pid"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            os._exit(0)
        os.write(claim, f"{os.getpid()} {began} {ask['boot']}\n".encode())
        os.close(claim)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        child = os.fork()
        if child == 0:
            _become(ask, program)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        _end_leftovers(ask["groups"])
        with open(os.path.join(run, "exit"), "w", encoding="ascii") as file:
            file.write(f"{code}\n")
        os._exit(code)
    except BaseException as error:  # whatever it was: it is told in the log, and no exit code is written
        os.write(2, f"the session's keeper failed: {error!r}\n".encode())
        os._exit(125)


def _end_leftovers(groups: list[str]) -> None:
    """What the session left behind ends with it."""
    with contextlib.suppress(OSError):
        for path in groups[:1]:
            with open(path, encoding="ascii") as file:
                for line in file:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(line), signal.SIGKILL)


def _become(ask: dict[str, Any], program: str) -> NoReturn:
    """The session itself, as if its program had been started with these arguments and variables."""
    code = 1
    try:
        for path in ask["groups"]:
            with open(path, "w", encoding="ascii") as group:
                group.write("0")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(ask["cwd"])
        os.environ.clear()
        os.environ.update(ask["variables"])
        tempfile.tempdir = None
        time.tzset()
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # both are files: /dev/null until now
        script = os.path.join(os.path.dirname(sys.executable), program)
        sys.argv = [script, *ask["arguments"]]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            os.write(2, f"{end.code}\n".encode())
    except BaseException:  # the interpreter's own last resort, done by hand: this fork must not go on
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
