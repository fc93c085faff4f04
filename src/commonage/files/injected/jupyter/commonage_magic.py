"""Cell magic `%%commonage`: runs one cell as a job, and shows its outputs in place. Loaded by startup.py.

The job runs a notebook of this one cell, with the session's environment, in the same folder. Its outputs come as lines
of its log (run_notebook.py). Names do not travel, except those of -i and -o, by pickle.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from commonage_jobs import ENDED, WAITING, Platform, Refused, folder_of, request_of  # type: ignore[import-not-found]  # beside this file
from IPython.core.error import UsageError
from IPython.display import clear_output, display, publish_display_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MARK = "commonage-output "
"""Begins a line with a part of an output: as in run_notebook.py."""
_POLL_MIN_S, _POLL_MAX_S = 0.2, 1.0
_NOTEBOOK, _IN, _OUT = "cell.ipynb", "in.pickle", "out.pickle"
_UNITS = {"": 1, "m": 1, "mib": 1, "g": 1024, "gib": 1024, "t": 1024**2, "tib": 1024**2}
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LOAD = """
import os, pickle
with open(os.path.expanduser(f"~/jobs/{os.environ['COMMONAGE_WORKLOAD_ID']}/in.pickle"), "rb") as file:
    globals().update(pickle.load(file))
del file
"""
_STORE = """
import os, pickle
with open(os.path.expanduser(f"~/jobs/{{os.environ['COMMONAGE_WORKLOAD_ID']}}/out.pickle"), "wb") as file:
    pickle.dump({{name: globals()[name] for name in {names!r}}}, file)
"""


def load_ipython_extension(shell: Any) -> None:
    def commonage(line: str, cell: str) -> None:
        try:
            _run(shell, _options(line), cell)
        except Refused as error:
            raise UsageError(f"commonage: {error}") from None

    shell.register_magic_function(commonage, "cell", "commonage")


class JobError(Exception):
    """An exception in the job, shown with the traceback that it had there."""

    def __init__(self, name: str, value: str, traceback: list[str]) -> None:
        super().__init__(f"{name}: {value}")
        self._traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return self._traceback


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"%%commonage: {message}\n{self.format_usage()}")


def _options(line: str) -> argparse.Namespace:
    parser = _Parser("%%commonage", add_help=False)
    parser.add_argument("--gpus", metavar="SHARE", help="8GiB of VRAM, 0.5 of a GPU, 2 GPUs; without it none")
    parser.add_argument("--cpus", metavar="N")
    parser.add_argument("--mem", metavar="SIZE", type=_mib)
    parser.add_argument("--time", metavar="LIMIT", type=_seconds)
    parser.add_argument("--env", metavar="NAME")
    parser.add_argument("--tenant", metavar="NAME")
    parser.add_argument("--name", metavar="NAME")
    parser.add_argument("-i", "--in", dest="given", metavar="NAMES", action="append", default=[], help="a,b")
    parser.add_argument("-o", "--out", dest="wanted", metavar="NAMES", action="append", default=[], help="a,b")
    try:
        options = parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"%%commonage: {error}") from None
    for field in ("given", "wanted"):
        names = [name.strip() for text in getattr(options, field) for name in text.split(",") if name.strip()]
        wrong = [name for name in names if not name.isidentifier()]
        if wrong:
            raise UsageError(f"%%commonage: {wrong[0]!r} is not the name of a variable")
        setattr(options, field, names)
    return options


def _mib(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of memory; write 4GiB or 512MiB")
    return round(float(found[1]) * _UNITS[found[2]])


def _seconds(text: str) -> int:
    parts = re.findall(r"(\d+)([dhms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no time limit; write 90s, 30m or 1h30m")
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def _run(shell: Any, options: argparse.Namespace, cell: str) -> None:
    platform = Platform()
    own = request_of(platform.session())
    fields = {
        **own,
        "gpus": options.gpus,
        "one_numa": False,
        "cpus": options.cpus or own["cpus"],
        "memory_mib": options.mem or own["memory_mib"],
        "environment": options.env or own["environment"],
        "tenant": options.tenant or own["tenant"],
        "time_limit_s": options.time,
        # A label of the session's node may say what only that node has.
        "on": {"site": own["on"]["site"]},
        "name": options.name or _name_of(cell),
        "command": [_NOTEBOOK, "--show", "--folder", folder_of(os.getcwd())],
    }
    files = {_NOTEBOOK: json.dumps(_notebook(cell, options)).encode()}
    if options.given:
        files[_IN] = _pickled(shell.user_ns, options.given)
    with _uninterrupted():
        job = platform.submit(files, fields)
        status = display({"text/plain": f"Job {job['id']}: submitted"}, raw=True, display_id=True)
    cell_outputs = _Outputs()
    try:
        ended = _follow(platform, job, cell_outputs, lambda text: status.update({"text/plain": text}, raw=True))
    except BaseException as error:
        with _uninterrupted():
            _stop(platform, job["id"])
        status.update({"text/plain": f"Job {job['id']}: stopped"}, raw=True)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"job {job['id']} is stopped") from None
        raise
    if ended["state"] != "succeeded":
        if cell_outputs.error is not None:
            raised = cell_outputs.error
            raise type(str(raised["ename"]), (JobError,), {})(raised["ename"], raised["evalue"], raised["traceback"])
        raise Refused(f"job {job['id']} {ended['state'].replace('_', ' ')}: {ended['reason']['message']}")
    if options.wanted:
        shell.user_ns.update(_returned(job["id"]))


def _name_of(cell: str) -> str:
    lines = [line.strip() for line in cell.splitlines() if line.strip()]
    return (lines[0] if lines else "cell")[:60]


def _notebook(cell: str, options: argparse.Namespace) -> dict[str, Any]:
    sources = [
        *([_LOAD] if options.given else []),
        cell,
        *([_STORE.format(names=options.wanted)] if options.wanted else []),
    ]
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}
        for source in sources
    ]
    kernel = {"name": _kernel(), "display_name": _kernel()}
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": {"kernelspec": kernel}, "cells": cells}


def _kernel() -> str:
    """The name of this kernel, which the job runs too."""
    try:
        from ipykernel.connect import get_connection_file  # noqa: PLC0415 - other kernels of IPython lack it

        with open(get_connection_file(), encoding="utf-8") as file:
            return str(json.load(file)["kernel_name"]) or "python3"
    except (ImportError, OSError, ValueError, KeyError, RuntimeError):
        return "python3"


def _pickled(known: dict[str, Any], names: list[str]) -> bytes:
    missing = [name for name in names if name not in known]
    if missing:
        raise UsageError(f"%%commonage: there is no variable {missing[0]}")
    values = {}
    for name in names:
        try:
            pickle.dumps(known[name])
        except Exception as error:  # objects may raise anything
            raise UsageError(f"%%commonage: {name} cannot be sent: {error}") from None
        values[name] = known[name]
    return pickle.dumps(values)


def _returned(workload_id: str) -> dict[str, Any]:
    path = os.path.expanduser(f"~/jobs/{workload_id}/{_OUT}")
    try:
        with open(path, "rb") as file:
            return dict(pickle.load(file))  # noqa: S301 - the user's own job wrote it in the user's own home
    except (OSError, pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise Refused(f"the results in {path} cannot be read: {error}") from None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interrupt between a request and its answer would leave a job whose id is unknown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(platform: Platform, workload_id: str) -> None:
    try:
        platform.stop(workload_id, "interrupted in the notebook")
    except Refused as error:  # it has ended
        sys.stderr.write(f"commonage: job {workload_id} was not stopped: {error}\n")


def _follow(platform: Platform, job: Any, outputs: _Outputs, say: Any) -> Any:
    """Show its state and its outputs until it ends. Returns the ended job."""
    shown, pause_s, last = 0, _POLL_MIN_S, ""
    while True:
        job = platform.workload(job["id"])
        text = f"Job {job['id']}: {job['state'].replace('_', ' ')}"
        if job["state"] in WAITING:
            text += f". {job['reason']['message']}"
        elif job["node"]:
            text += f" on {job['node']}"
        if text != last:
            say(text)
            last = text
        if job["attempts"] > shown and job["state"] not in WAITING:
            for line in platform.lines(job["id"], shown + 1):
                outputs.feed(line)
            shown += 1
            pause_s = _POLL_MIN_S
        elif job["state"] in ENDED:
            return job
        else:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _POLL_MAX_S)


class _Outputs:
    """Puts the lines of the log together to outputs, and shows them. Lines of others are shown as they are."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.error: dict[str, Any] | None = None

    def feed(self, line: str) -> None:
        if not line.startswith(MARK):
            print(line)
            return
        body = line[len(MARK) :]
        self._parts.append(body[1:])
        if body[:1] == ".":
            packed, self._parts = "".join(self._parts), []
            try:
                message = json.loads(packed)
                self._show(message["type"], message["content"])
            except (ValueError, KeyError) as error:  # the middle of a long log is dropped
                sys.stderr.write(f"commonage: an output is lost: {error}\n")

    def _show(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            target = sys.stderr if content["name"] == "stderr" else sys.stdout
            target.write(content["text"])
            target.flush()
        elif kind == "error":
            self.error = content
        elif kind == "clear_output":
            clear_output(wait=content.get("wait", False))
        else:
            publish_display_data(
                content["data"],
                content.get("metadata", {}),
                transient=content.get("transient", {}),
                update=kind == "update_display_data",
            )
