"""One MPS control daemon for one GPU: started, recognised by a later process, and ended. Used by `mps` only.

The daemon (`nvidia-cuda-mps-control -d`, part of the driver) detaches itself and outlives the server, as do the
workloads that are its clients. It sees only its GPU, and has its own pipe and log folders, 0700: workloads run as the
same user. In the pipe folder it writes its process id. Source: NVIDIA, "Multi-Process Service", legacy interface
(version 2).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pynvml

from commonage.gpu.isolation.session import handle_of, nvml, words
from commonage.ports.devices import ShareNotEnforced

log = logging.getLogger(__name__)
PROGRAM = "nvidia-cuda-mps-control"
_NAME = b"nvidia-cuda-mps-"  # of the control daemon, and of the server that it starts
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MAX_PATH = 80
"""Maximum length of the pipe folder's path: with the names of its sockets it must stay below the system's 108."""
_STARTS_WITHIN_S, _ENDS_WITHIN_S, _LOOK_S = 20.0, 10.0, 0.05


class MpsDaemon:
    def __init__(self, uuid: str, folder: Path) -> None:
        self.uuid = uuid
        self.folder = folder
        self.pipe, self.log = folder / "pipe", folder / "log"
        self._notes = folder / "daemon.json"

    @classmethod
    def in_folder(cls, folder: Path) -> MpsDaemon:
        """The daemon with its files in this folder, for the GPU recorded there; without a GPU if none is recorded."""
        try:
            return cls((folder / "uuid").read_text(encoding="ascii"), folder)
        except OSError:
            return cls("", folder)

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which its clients find it. A container has both folders mounted at the same place."""
        return {PIPE: str(self.pipe), LOG: str(self.log)}

    def pid(self) -> int | None:
        """Its process id, if it is alive."""
        try:
            pid = int((self.pipe / f"{PROGRAM}.pid").read_text(encoding="ascii").strip())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if PROGRAM.encode() in command else None

    def start(self) -> None:
        """Start it unless it runs. Raises ShareNotEnforced."""
        if self.pid() is not None:
            return
        self._end()  # one that was interrupted before it wrote its process id
        program = shutil.which(PROGRAM)
        if program is None:
            raise ShareNotEnforced(f"MPS cannot be started: {PROGRAM} is not there any more", retryable=True)
        try:
            for place in (self.folder, self.pipe, self.log):
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.folder / "uuid").write_text(self.uuid, encoding="ascii")
            for left in self.pipe.iterdir():  # sockets of a killed daemon; with them a new one would refuse to start
                if not left.is_dir() or left.is_symlink():
                    left.unlink()
                else:
                    shutil.rmtree(left, ignore_errors=True)
            ended, said = self._run(program)
        except (OSError, subprocess.TimeoutExpired) as error:
            self._quit()
            raise ShareNotEnforced(f"MPS does not start for {self.uuid}: {error}", retryable=True) from error
        if ended != 0 or not self._comes():
            self._quit()  # the GPU's mode stays: after a restart of the daemon it still has shares
            raise ShareNotEnforced(f"MPS does not start for {self.uuid}: {said or f'see {self.log}'}", retryable=True)

    def _run(self, program: str) -> tuple[int, str]:
        """Exit code and output. The output goes to a file: a daemon that keeps a pipe open would block us."""
        with (self.log / "start.txt").open("w+b") as said:
            ended = subprocess.run(
                [program, "-d"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=_STARTS_WITHIN_S,
                start_new_session=True,
                check=False,
            )
            said.seek(0)
            return ended.returncode, said.read().decode("utf-8", "replace").strip()[-300:]

    def _comes(self) -> bool:
        deadline = time.monotonic() + _STARTS_WITHIN_S / 4
        while self.pid() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def stop(self) -> None:
        """End it, by force if needed, and restore the GPU's compute mode. Idempotent."""
        self._quit()
        self.share_mode()
        self._notes.unlink(missing_ok=True)
        shutil.rmtree(self.pipe, ignore_errors=True)

    def _quit(self) -> None:
        if self.pid() is not None:
            program = shutil.which(PROGRAM)
            if program is not None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(
                        [program], env=self._environment(), input=b"quit\n", timeout=_ENDS_WITHIN_S,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                    )  # fmt: skip
                self._goes()
        self._end()

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            if self._goes():
                return
        log.warning("the MPS daemon of %s (processes %s) cannot be ended", self.uuid, self.processes())

    def _goes(self) -> bool:
        deadline = time.monotonic() + 1.0
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def processes(self) -> list[int]:
        """All processes of this daemon, found by their variables: while it starts it has not written its process id."""
        pipe, found = f"{PIPE}={self.pipe}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if _NAME in (entry / "cmdline").read_bytes() and pipe in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return {**kept, **self.variables, "CUDA_VISIBLE_DEVICES": self.uuid}

    # --- the GPU's compute mode ---------------------------------------------------------------------------

    def exclusive_mode(self) -> str:
        """Let only the daemon's clients use the GPU: otherwise a program that clears its variables gets all of it.

        Returns an empty string, or why this failed. The previous mode is written to disk first.
        """
        wanted = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        try:
            with nvml():
                handle = handle_of(self.uuid)
                before = pynvml.nvmlDeviceGetComputeMode(handle)
                if before == wanted:
                    return ""
                self._notes.write_text(json.dumps({"compute_mode_before": before}), encoding="ascii")
                pynvml.nvmlDeviceSetComputeMode(handle, wanted)
        except pynvml.NVMLError as error:
            return words(error)
        except OSError as error:
            return f"it cannot be written down: {error.strerror}"
        return ""

    def share_mode(self) -> None:
        """Restore the shared compute mode, if the GPU had it before."""
        try:
            before = int(json.loads(self._notes.read_text(encoding="ascii"))["compute_mode_before"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        try:
            with nvml():
                handle = handle_of(self.uuid)
                if pynvml.nvmlDeviceGetComputeMode(handle) != before:  # if equal, it was never changed: only root may
                    pynvml.nvmlDeviceSetComputeMode(handle, before)
        except pynvml.NVMLError as error:
            log.warning("%s stays in exclusive-process mode, `nvidia-smi -c 0` ends that: %s", self.uuid, words(error))
