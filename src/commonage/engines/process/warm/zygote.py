"""The warm parent of sessions: a process that has imported the modules of a Jupyter server, and forks.

Most of a session's start is imports, the same for all of an environment. The environment's own Python runs this
program, so it uses the standard library only. It imports once, reports on its stdin (a socket) that it is ready, and
waits there for requests. For each request it forks a keeper, which does for the session what shim.sh does for other
programs: claim the run folder, join the cgroups, wait, record the end. Called by sessions.py: python -I -u zygote.py
SERVING PRELOADING PADDING. It ends when the control plane's end of the socket is closed for any reason; the keepers and
their sessions do not.

A fork must equal a fresh process (preloading.py). Variables that were read anyway are reported; sessions.py then forks
only if the session has the same values.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import sys
import time
from typing import Any

# Not preloaded: on import they set up threads or a GPU from variables that differ between sessions.
NEVER = ("numpy", "torch", "cupy")
KEEP_REMAINS_S = 5.0  # for this time the pid of an ended keeper is not reused
LINK = 0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    """Import, report ready, and fork until the control plane ends. Returns only in a session, after its program."""
    serving, preloading = runpy.run_path(sys.argv[1]), runpy.run_path(sys.argv[2])
    end = serving["Exit"]()
    read = preloading["import_libraries"]()
    why = _reason_not_to_fork()
    _tell({"refused": why} if why else {"read": sorted(read)})
    if why:
        sys.exit(1)
    gc.collect()
    gc.freeze()  # keeps the current objects shared with all sessions
    preloading["rename"]("commonage-warm-parent", os.path.dirname(sys.executable))
    ask = _serve(preloading)
    _become(preloading, ask)
    serving["run"](end)


def _reason_not_to_fork() -> str:
    if len(os.listdir("/proc/self/task")) != 1:
        return "a library started a thread, and a process with threads must not fork"
    # The listing itself has one open.
    opened = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    if max(opened) > 2:
        return "a library keeps a file open, and forks would share it"
    loaded = [name for name in NEVER if name in sys.modules]
    return f"a library loaded {loaded[0]}" if loaded else ""


def _tell(message: Any) -> None:
    os.write(LINK, json.dumps(message).encode() + b"\n")


def _serve(preloading: dict[str, Any]) -> dict[str, Any]:
    """Fork a keeper for each request. Returns only in the sessions, which their keepers fork."""
    keepers: dict[int, float] = {}
    while True:
        ready, _, _ = select.select([LINK], [], [], KEEP_REMAINS_S if keepers else None)
        for pid, born in list(keepers.items()):
            if time.monotonic() - born > KEEP_REMAINS_S and os.waitpid(pid, os.WNOHANG)[0]:
                del keepers[pid]
        if not ready:
            continue
        ask = _read_ask()
        try:
            pid = os.fork()
        except OSError:  # no memory or no processes left: the caller may start it in another way
            _tell(0)
            continue
        if pid == 0:
            _keep(preloading, ask)
            return ask
        keepers[pid] = time.monotonic()
        _tell(pid)


def _read_ask() -> dict[str, Any]:
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = os.read(LINK, 65536)
        if not part:
            os._exit(0)
        parts.append(part)
    ask: dict[str, Any] = json.loads(b"".join(parts))
    return ask


def _keep(preloading: dict[str, Any], ask: dict[str, Any]) -> None:
    """The keeper: shim.sh in Python. Returns only in the session that it forks."""
    try:
        run: str = ask["run"]
        os.setsid()
        _redirect(run)
        preloading["rename"]("commonage-keeper", run)
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            began = stat.read().rpartition(")")[2].split()[19]
        try:
            claim = os.open(os.path.join(run, "pid"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            os._exit(0)
        os.write(claim, f"{os.getpid()} {began} {ask['boot']}\n".encode())
        os.close(claim)
        for number in SIGNALS:
            signal.signal(number, lambda _number, _frame: None)
        child = os.fork()
        if child == 0:
            return
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        _end_leftovers(ask["groups"])
        _write_exit(run, code)
        os._exit(code)
    except BaseException as error:  # any exception is written to the log, and no exit code is written
        os.write(2, f"the session's keeper failed: {error!r}\n".encode())
        os._exit(125)


def _redirect(run: str) -> None:
    """Redirect output to the log and input to nowhere, which also releases the parent's socket."""
    log = os.open(os.path.join(run, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)


def _write_exit(run: str, code: int) -> None:
    """On a full disk, write into the reserved file and rename it: others might take the space if it were deleted."""
    path, room = os.path.join(run, "exit"), os.path.join(run, "room")
    try:
        _write(path, "w", f"{code}\n")
    except OSError:
        _write(room, "r+", f"{code}\n")
        os.replace(room, path)


def _write(path: str, mode: str, text: str) -> None:
    with open(path, mode, encoding="ascii") as file:
        file.write(text)


def _end_leftovers(groups: list[str]) -> None:
    """End processes that the session left behind."""
    with contextlib.suppress(OSError), open(groups[0], encoding="ascii") as file:
        for line in file:
            with contextlib.suppress(ProcessLookupError):
                if int(line) > 0:  # 0 would be ourselves, to kill(2)
                    os.kill(int(line), signal.SIGKILL)


def _become(preloading: dict[str, Any], ask: dict[str, Any]) -> None:
    """Make this process equal one that was started with these arguments and variables."""
    try:
        # Reset the handlers first: a process can be signalled as soon as it is in its groups.
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for path in ask["groups"]:
            with open(path, "w", encoding="ascii") as group:
                group.write("0")
        os.chdir(ask["cwd"])
    except OSError as error:
        os.write(2, f"the session cannot begin: {error}\n".encode())
        os._exit(125)
    sys.path.insert(0, os.path.dirname(sys.executable))
    program = os.path.join(os.path.dirname(sys.executable), ask["program"])
    preloading["become"](ask["variables"], ask["cwd"], program, ask["arguments"])


if __name__ == "__main__":
    main()
