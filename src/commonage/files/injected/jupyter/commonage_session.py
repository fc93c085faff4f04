"""Commonage's part of a session's Jupyter server: reports whether the session is used, and passes on notices.

Loaded by `jupyter_server_config.py` next to it, in the session's own Python, so this uses the standard library and what
every Jupyter server has. It calls the control plane with the session's own token; nothing calls it from outside. What
counts as use: a kernel that computes, what a kernel's processes compute, a program in a terminal of any kind or beside
server and kernels (`commonage exec`), input and output. Requests and open pages do not count. What people do in apps of
the server and by SSH cannot be measured.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from datetime import datetime
from typing import Any

from jupyter_server.base.handlers import APIHandler  # sessions have it
from jupyter_server.utils import url_path_join  # likewise
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

log = logging.getLogger("commonage")
FIRST_S, USUAL_S = 2.0, 60.0
KEEP_S = 7200
SHELLS = ("bash", "sh", "dash", "zsh", "fish", "ksh", "tcsh", "csh", "xonsh", "login", "su", "sudo", "tmux", "screen")
"""They wait for input, or hold shells whose own terminals are looked at."""
QUIET = re.compile(
    r"sleep|tensorboard|visdom|pandoc|git(-.*)?|.*(langserver|language-server|lsp).*|(ssh|gpg)-agent|dbus-(daemon|launch)"
)
"""Programs that do not count as use: no user works in them or waits for them. A container's start script sleeps while
its server runs.
"""
INTERPRETERS = re.compile(r"python[\d.]*|node|nodejs|sh|bash|perl")
CONNECTIONS = ("sshd", "sshd-session", "dropbear")
BUSY_CPU = 0.2
"""Cores that the processes of a kernel use between two looks: they compute."""
NAMES = 8


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "commonage_session"}]


def _load_jupyter_server_extension(app: Any) -> None:
    if not all(os.environ.get(name) for name in ("COMMONAGE_URL", "COMMONAGE_TOKEN", "COMMONAGE_WORKLOAD_ID")):
        return
    session = Session(app)
    app.web_app.settings["commonage_session"] = session
    place = url_path_join(app.web_app.settings["base_url"], "commonage")
    app.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(place, "notices"), Notices, {"session": session}),
            (url_path_join(place, "(extend|release-gpu)"), Act, {"session": session}),
        ],
    )
    session.begin()


# --- what happens in the session --------------------------------------------------------------------------------------


class Processes:
    """The processes of this session, from /proc. Other users' processes and those of other sessions are not read."""

    def __init__(self, attempt: str) -> None:
        self._mark = f"COMMONAGE_ATTEMPT_ID={attempt}".encode()
        self._is_ours: dict[tuple[int, int], bool] = {}
        self._cpu: dict[tuple[int, int], float] = {}
        self._looked_at = 0.0

    def look(self) -> dict[int, Process]:
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                process = Process.read(int(name))
                if process is not None and process.state not in "ZXx":
                    found[process.pid] = process
        return found

    def is_ours(self, process: Process) -> bool:
        known = self._is_ours.get(process.key)
        if known is None:
            try:
                with open(f"/proc/{process.pid}/environ", "rb") as file:
                    known = self._mark in file.read().split(b"\0")
            except OSError:
                known = False
            self._is_ours[process.key] = known
        return known

    def cpu_used(self, processes: list[Process]) -> dict[int, float]:
        """Cores that each has used since the last look, by pid."""
        now, before = time.monotonic(), self._cpu
        span = max(1e-3, now - self._looked_at)
        self._cpu, self._looked_at = {one.key: one.cpu_s for one in processes}, now
        return {one.pid: (one.cpu_s - before[one.key]) / span for one in processes if one.key in before}

    def forget_all_but(self, there: dict[int, Process]) -> None:
        keys = {one.key for one in there.values()}
        self._is_ours = {key: known for key, known in self._is_ours.items() if key in keys}


class Process:
    """One line of /proc/PID/stat. `foreground` is the process group that its terminal obeys."""

    def __init__(self, pid: int, name: str, values: list[str]) -> None:
        self.pid, self.name, self.state = pid, name, values[0]
        self.parent, self.group, self.session, self.terminal, self.foreground = (int(one) for one in values[1:6])
        self.cpu_s = (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
        self.key = (pid, int(values[19]))  # a pid is used again, at another time

    @classmethod
    def read(cls, pid: int) -> Process | None:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                text = file.read().decode(errors="replace")
        except OSError:
            return None
        head, _, rest = text.rpartition(")")
        return cls(pid, head.partition("(")[2], rest.split())

    @property
    def program(self) -> str:
        """The name of the file that it runs: for a script not that of its interpreter."""
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                words = file.read(4096).decode(errors="replace").split("\0")
        except OSError:
            return self.name
        return _program_in(words) or self.name

    @property
    def is_quiet(self) -> bool:
        return QUIET.fullmatch(self.program) is not None

    @property
    def is_shell(self) -> bool:
        return self.name.lstrip("-").partition(":")[0] in SHELLS


def _program_in(words: list[str]) -> str:
    name, *rest = words
    name = os.path.basename(name)
    if not INTERPRETERS.fullmatch(name):
        return name
    for at, word in enumerate(rest):
        if word == "-c":
            break
        if word == "-m" or os.path.basename(word) == "start_app.py":
            return "".join(rest[at + 1 : at + 2])
        if word and not word.startswith("-"):
            return os.path.basename(word)
    return name


class Watch:
    """Looks at kernels and processes. `active_at` is the last sign of use, on the monotonic clock."""

    def __init__(self, app: Any, attempt: str) -> None:
        self.is_busy = False
        self._kernels = app.kernel_manager
        self._settings = app.web_app.settings
        self._processes = Processes(attempt)
        self.active_at = time.monotonic()
        self.programs: list[str] = []
        self.is_measured = True

    def look(self) -> None:
        there = self._processes.look()
        kernels = {id_: self._kernels.get_kernel(id_) for id_ in self._kernels.list_kernel_ids()}
        busy = [_title(kernel) for kernel in kernels.values() if getattr(kernel, "execution_state", "") == "busy"]
        children = _children(there)
        roots = {pid for pid in map(_pid_of, kernels.values()) if pid is not None}
        of_kernels = [one for root in roots for one in _descendants(root, children)]
        cpu = self._processes.cpu_used(of_kernels)
        computing = [one.name for one in of_kernels if cpu.get(one.pid, 0.0) >= BUSY_CPU]
        ours = self._ours(there, children)
        mine = [one for one in ours if one.terminal]
        within = {one.pid for root in (os.getpid(), *roots) for one in _descendants(root, children)}
        not_aside = within | roots | _ancestors(os.getpid(), there) | {os.getpid()}
        aside = [one for one in ours if not one.terminal and one.pid not in not_aside]
        connections = [one.name for one in aside if one.name in CONNECTIONS]
        aside = [one for one in aside if one.name not in CONNECTIONS and not one.is_quiet]
        running = [one.name for one in (*mine, *aside) if not one.is_shell and one.state not in "Tt"]
        self._processes.forget_all_but(there)
        apps = self._apps(children, roots)
        self.programs = [*busy, *computing, *running, *apps, *connections][:NAMES]
        self.is_measured = not (apps or connections)
        self.is_busy = bool(busy or computing or running)
        if self.is_busy:
            self.active_at = time.monotonic()
            return
        ages = [_age(getattr(kernel, "last_activity", None)) for kernel in kernels.values()]
        ages += [_age(one) for one in self._terminals_used()]
        ages += [age for one in mine for age in _tty_ages(one)]
        known = [age for age in ages if age is not None]
        if known:
            self.active_at = max(self.active_at, time.monotonic() - max(0.0, min(known)))

    def _ours(self, there: dict[int, Process], children: dict[int, list[Process]]) -> list[Process]:
        """This session's processes, also those that hide their environment, such as sshd, below one that shows it."""
        marked = [one for one in there.values() if self._processes.is_ours(one)]
        below = (child for one in marked for child in _descendants(one.pid, children))
        return list({one.pid: one for one in (*marked, *below)}.values())

    def _apps(self, children: dict[int, list[Process]], kernels: set[int]) -> list[str]:
        """Programs that people use through the server's page, such as a desktop: their use cannot be measured."""
        own = [one for one in children.get(os.getpid(), []) if one.pid not in kernels and not one.terminal]
        return [one.name for one in own if not one.is_shell and not one.is_quiet]

    def _terminals_used(self) -> list[Any]:
        manager = self._settings.get("terminal_manager")
        return [getattr(one, "last_activity", None) for one in getattr(manager, "terminals", {}).values()]


def _title(kernel: Any) -> str:
    return f"kernel {getattr(kernel, 'kernel_name', '')}".strip()


def _pid_of(kernel: Any) -> int | None:
    provisioner = getattr(kernel, "provisioner", None)
    pid = getattr(provisioner, "pid", None) or getattr(getattr(provisioner, "process", None), "pid", None)
    return pid if isinstance(pid, int) else None


def _children(there: dict[int, Process]) -> dict[int, list[Process]]:
    children: dict[int, list[Process]] = {}
    for one in there.values():
        children.setdefault(one.parent, []).append(one)
    return children


def _descendants(root: int, children: dict[int, list[Process]]) -> list[Process]:
    found, waiting = [], list(children.get(root, ()))
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children.get(one.pid, ())
    return found


def _ancestors(pid: int, there: dict[int, Process]) -> set[int]:
    found: set[int] = set()
    while pid in there and (pid := there[pid].parent) not in found:
        found.add(pid)
    return found


def _age(at: Any) -> float | None:
    return time.time() - at.timestamp() if isinstance(at, datetime) else None


def _tty_ages(process: Process) -> list[float]:
    """Seconds since the last input and output of its terminal."""
    major, minor = (process.terminal >> 8) & 0xFFF, (process.terminal & 0xFF) | ((process.terminal >> 12) & 0xFFF00)
    if not 136 <= major <= 143:
        return []
    try:
        found = os.stat(f"/dev/pts/{(major - 136) * 256 + minor}")
    except OSError:
        return []
    return [time.time() - found.st_atime, time.time() - found.st_mtime]


# --- the control plane ------------------------------------------------------------------------------------------------


class Session:
    """Reports to the control plane, and keeps the last answer. `notices`: what the owner should know now."""

    def __init__(self, app: Any) -> None:
        environ = os.environ
        self._workload, self._number = environ["COMMONAGE_WORKLOAD_ID"], int(environ.get("COMMONAGE_ATTEMPT") or "1")
        self._place = f"{environ['COMMONAGE_URL'].rstrip('/')}/workloads/{self._workload}"
        self._token = environ["COMMONAGE_TOKEN"]
        self._watch = Watch(app, environ.get("COMMONAGE_ATTEMPT_ID", ""))
        self._task: asyncio.Task[None] | None = None
        self.notices: list[dict[str, Any]] = []

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        next_s = FIRST_S
        while True:
            await asyncio.sleep(max(1.0, next_s))
            try:
                self._watch.look()
                next_s = await self.report()
            except Exception as error:  # whatever it is, the session continues, and counts as active without reports
                log.warning("Commonage: the activity of this session is not reported: %s", error)
                next_s = USUAL_S

    async def report(self) -> float:
        """Tell what happens here; returns the seconds until the next report."""
        watch = self._watch
        answer = await self.post(
            "activity",
            {
                "attempt": self._number,
                "busy": watch.is_busy,
                "idle_s": max(0.0, time.monotonic() - watch.active_at),
                "programs": [name[:64] for name in watch.programs],
                "is_measured": watch.is_measured,
            },
        )
        self.notices = answer.get("notices", [])
        return float(answer.get("next_s", USUAL_S))

    async def post(self, what: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """POST to the workload's path. Raises HTTPClientError."""
        request = HTTPRequest(
            f"{self._place}/{what}",
            method="POST",
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
            body="" if body is None else json.dumps(body),
            request_timeout=20,
        )
        response = await AsyncHTTPClient().fetch(request)
        found: dict[str, Any] = json.loads(response.body)
        return found


# --- for the page -----------------------------------------------------------------------------------------------------


class _Handler(APIHandler):  # type: ignore[misc]  # its type is not known here
    def initialize(self, session: Session) -> None:
        self._of = session


class Notices(_Handler):
    @web.authenticated
    async def get(self) -> None:
        """Answer with the notices to the owner, and the actions that they offer."""
        self.finish({"notices": self._of.notices})

    def _log(self) -> None:
        """Not in the log of the session, because each open page asks every few seconds."""
        if self.get_status() >= 400:
            super()._log()


class Act(_Handler):
    @web.authenticated
    async def post(self, what: str) -> None:
        """Keep the session for two more hours, or give its GPU back."""
        try:
            body = {"for_s": KEEP_S} if what == "extend" else None
            await self._of.post(what, body)
            if what == "extend":
                await self._of.report()
        except HTTPClientError as error:
            self.set_status(error.code if 400 <= error.code < 500 else 502)
            self.finish({"message": _detail(error)})
            return
        self.finish({"notices": self._of.notices})


def _detail(error: HTTPClientError) -> str:
    try:
        return str(json.loads(error.response.body)["detail"]) if error.response else str(error)
    except (ValueError, KeyError, TypeError):
        return str(error)
