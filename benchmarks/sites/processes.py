"""The appliances that `sites` measures: those simulated in one process, and one real site agent with processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from benchmarks.report import BenchmarkError
from benchmarks.server import command

_LOG_CHARACTERS = 2000


@contextlib.contextmanager
def simulated(folder: Path, tokens: Sequence[tuple[str, str]], gpus: int, sample_every_s: float) -> Iterator[None]:
    """Appliances that have joined with these (site, token), and stay until the block ends. Raises BenchmarkError."""
    argv = [sys.executable, "-m", "benchmarks.sites.appliances", str(folder), str(gpus), str(sample_every_s)]
    with _log(folder) as log:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(list(tokens)) + "\n")
            process.stdin.flush()
            if process.stdout.readline() != "joined\n":
                raise BenchmarkError(f"the appliances cannot join:\n{_end_of(log)}")
            yield
        finally:
            process.stdin.close()
            process.wait(30)
            process.stdout.close()


@contextlib.contextmanager
def real(folder: Path, token: str, sample_every_s: float) -> Iterator[None]:
    """`commonage site agent` with the process engine, until the block ends. Raises BenchmarkError."""
    variables = os.environ | {"COMMONAGE_GPUS": "none", "COMMONAGE_SAMPLE_EVERY_S": str(sample_every_s)}
    where = ["--data-dir", str(folder)]
    with _log(folder) as log:
        argv = [*command(), "site", "join", "--token-file", "-", *where]
        joined = subprocess.run(argv, input=token.encode(), stdout=log, stderr=log, check=False)
        if joined.returncode != 0:
            raise BenchmarkError(f"`commonage site join` ended with {joined.returncode}:\n{_end_of(log)}")
        agent = subprocess.Popen([*command(), "site", "agent", *where], stdout=log, stderr=log, env=variables)
        try:
            yield
        finally:
            agent.terminate()
            agent.wait(30)


def _log(folder: Path) -> IO[bytes]:
    return folder.with_suffix(".log").open("wb")


def _end_of(log: IO[bytes]) -> str:
    return Path(log.name).read_text(errors="replace")[-_LOG_CHARACTERS:]
