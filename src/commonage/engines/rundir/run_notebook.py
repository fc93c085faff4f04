"""Runs a notebook in a job, with the nbclient of the job's environment.

Given to that environment's Python with -c (notebooks.py), so it uses the standard library and what Jupyter brings, and
supports Python 3.8. The arguments: NOTEBOOK [--folder BELOW-HOME] [--show].

The result is in the folder of the notebook, or in that of `--folder`; it is written again after each cell, so that the
results until then survive a failure or a stop. With --show there is no result: each output is a line of the log, for
the program that follows it. Such a line is MARK, `+` or `.` (`.`: the last part), and a part of the JSON of a message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

TYPE_CHECKING = False  # importing typing is not needed otherwise
if TYPE_CHECKING:
    from typing import Any

MARK = "commonage-output "
PART = 8000  # characters of a line: longer ones are cut in the log
_SHOWN = ("stream", "display_data", "execute_result", "update_display_data", "clear_output", "error")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
STOPPED = 143
STARTUP_S = 600  # of the kernel, on a node that is busy with the start of others


def main() -> int:
    asked = _arguments()
    try:
        import nbclient  # noqa: F401, PLC0415 - may be missing
        import nbformat  # noqa: PLC0415 - likewise
    except ImportError as error:
        return _failed(
            f"this environment cannot run notebooks: {error}. Choose one that has JupyterLab or nbclient: "
            "`commonage env ls` lists all."
        )
    try:
        notebook = nbformat.read(asked.notebook, as_version=4)
    except OSError as error:
        return _failed(f"{asked.notebook} cannot be read: {error.strerror}. Send it with the job's files.")
    except (ValueError, nbformat.reader.NotJSONError) as error:
        return _failed(f"{asked.notebook} is not a notebook: {error}")
    folder = Path.home() / asked.folder if asked.folder is not None else Path(asked.notebook).absolute().parent
    if not folder.is_dir():
        return _failed(f"the folder {folder} is not there. The job must run at the site that has it.")
    result = None if asked.show else _Result(notebook, folder, Path(asked.notebook).stem)
    if result is not None:
        result.save("running")
        print(f"commonage: the result is written to {result.path}")
    return _run(notebook, folder, _show_lines if asked.show else _show_text, result)


def _run(notebook: Any, folder: Path, show: Any, result: _Result | None) -> int:
    from jupyter_client.kernelspec import NoSuchKernel  # noqa: PLC0415 - nbclient brings it
    from nbclient.exceptions import CellExecutionError  # noqa: PLC0415 - main has found it

    sockets = tempfile.mkdtemp(dir="/tmp")  # the path of a socket must be short, which that of TMPDIR need not be
    try:
        _client(notebook, folder, show, result, sockets).execute()
    except CellExecutionError:
        if result is not None:
            result.save("failed")
            _say(f"a cell failed. The result until there: {result.path}")
        return 1
    except NoSuchKernel as error:
        return _failed(f"this environment has no kernel {error.name!r}, which the notebook requires", result)
    except (Exception, asyncio.CancelledError) as error:  # the kernel died, or a stop came while it started
        return _failed(f"the notebook ended early: {type(error).__name__}: {error}", result)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    if result is not None:
        result.save("succeeded")
        print(f"commonage: done. The result: {result.path}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("commonage: a notebook as a job", add_help=False)
    parser.add_argument("notebook")
    parser.add_argument("--folder", help="where it runs, below the home")
    parser.add_argument("--show", action="store_true", help="outputs as lines of the log, and no result")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"commonage: {text}", file=sys.stderr, flush=True)


def _failed(why: str, result: _Result | None = None) -> int:
    if result is not None:
        result.save("failed")
        why = f"{why}. The result until there: {result.path}"
    _say(why)
    return 1


class _Result:
    """The executed notebook on disk, under a name that no file had: NAME.result-TIME.ipynb."""

    def __init__(self, notebook: Any, folder: Path, stem: str) -> None:
        self._notebook = notebook
        self._began = time.time()
        at = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._began))
        for number in range(1, 1000):
            self.path = folder / f"{stem}.result-{at}{'' if number == 1 else f'-{number}'}.ipynb"
            try:
                self.path.open("x").close()
                break
            except FileExistsError:
                continue
        for cell in notebook.cells:
            if cell.cell_type == "code":  # those of an earlier run would look like results
                cell.update({"outputs": [], "execution_count": None})

    def save(self, state: str) -> None:
        """Write all outputs so far. The disk may be full: a failure is logged, and the next cell runs."""
        import nbformat  # noqa: PLC0415 - main has found it

        self._notebook.metadata["commonage"] = {
            "workload": os.environ.get("COMMONAGE_WORKLOAD_ID", ""),
            "state": state,
            "began": self._began,
            "written": time.time(),
        }
        fresh = self.path.with_name(f".{self.path.name}.new")
        try:
            fresh.write_text(nbformat.writes(self._notebook), encoding="utf-8")
            fresh.replace(self.path)
        except OSError as error:
            _say(f"{self.path} cannot be written: {error.strerror}")


def _client(notebook: Any, folder: Path, show: Any, result: _Result | None, sockets: str) -> Any:
    from jupyter_client.kernelspec import KernelSpecManager  # noqa: PLC0415 - nbclient brings it
    from nbclient import NotebookClient  # noqa: PLC0415 - main has found it

    class Client(NotebookClient):  # type: ignore[misc]  # untyped
        async def async_execute_cell(self, cell: Any, cell_index: int, **options: Any) -> Any:
            # After nbclient's own handler, which would end the kernel and wait for its answer.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _stop)
            if result is not None and cell.cell_type == "code":
                first = (cell.source.strip().splitlines() or [""])[0][:60]
                print(f"[{cell_index + 1}/{len(notebook.cells)}] {first}", flush=True)
            try:
                return await super().async_execute_cell(cell, cell_index, **options)
            finally:
                if result is not None:
                    result.save("running")

        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] in _SHOWN:
                show(msg["msg_type"], msg["content"])
            return super().process_message(msg, cell, cell_index)

    def _stop() -> None:
        if result is not None:
            result.save("stopped")
            _say(f"stopped. The result until there: {result.path}")
        sys.stdout.flush()
        shutil.rmtree(sockets, ignore_errors=True)
        os._exit(STOPPED)  # the kernel ends with the job

    name = notebook.metadata.get("kernelspec", {}).get("name") or "python3"
    where = {"metadata": {"path": str(folder)}}
    client = Client(notebook, timeout=None, startup_timeout=STARTUP_S, kernel_name=name, resources=where)
    if any("ipykernel" in word for word in KernelSpecManager().get_kernel_spec(name).argv):
        # Other users cannot connect to it, unlike to a port of this node. Other kernels may not support it. Without
        # `ip` the sockets would be below the caller's folder.
        client.config["KernelManager"].update({"transport": "ipc", "ip": f"{sockets}/kernel"})
    return client


def _show_text(kind: str, content: Any) -> None:
    """The log of a notebook, for people: what it prints, and results as text."""
    if kind == "stream":
        text = content["text"]
    elif kind == "error":
        text = _ANSI.sub("", "\n".join(content["traceback"])) + "\n"
    else:
        text = content.get("data", {}).get("text/plain", "")
        text = f"{text}\n" if text else ""
    target = sys.stderr if kind == "error" or content.get("name") == "stderr" else sys.stdout
    target.write(text)
    target.flush()


def _show_lines(kind: str, content: Any) -> None:
    text = content["text"] if kind == "stream" and content["name"] == "stdout" else ""
    if text.endswith("\n") and "\r" not in text and MARK not in text and max(map(len, text.split("\n"))) < PART:
        sys.stdout.write(text)
    else:
        packed = json.dumps({"type": kind, "content": content}, default=str)
        for at in range(0, len(packed), PART):
            last = at + PART >= len(packed)
            sys.stdout.write(f"{MARK}{'.' if last else '+'}{packed[at : at + PART]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
