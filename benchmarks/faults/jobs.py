"""The workloads of the day, determined by the seed, and the journal in which they note themselves that they ran."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.faults.schedule import SITES

LABEL = {"place": "appliance"}
"""Of the nodes of appliances: the control plane's own node takes none of these workloads."""

# A line that cannot be printed because the disk is full is recorded here: it is recorded nowhere else.
_JOB = """
note() { echo "$*" >> "$JOURNAL"; }
note start "$COMMONAGE_ATTEMPT"
i=0
while [ "$i" -lt "$LINES_WANTED" ]; do
    echo "line $i" 2>/dev/null || note unprinted "$COMMONAGE_ATTEMPT" "$i"
    [ "$PAUSE" = 0 ] || sleep "$PAUSE"
    i=$((i+1))
done
[ "$SENT" = "" ] || cat sent
note end "$COMMONAGE_ATTEMPT"
exit "$CODE"
"""


class JobKind(StrEnum):
    SHORT = "short"
    LONG = "long"
    TALKATIVE = "talkative"
    FAILING = "failing"
    """Exits with 3 each time, and is retried twice."""
    FILES = "files"
    STOPPED = "stopped"
    """Runs until its owner stops it."""
    SERVICE = "service"
    """Serves a port until its owner stops it."""


@dataclass(frozen=True, slots=True)
class Job:
    """Submitted `at_s` seconds after the day began. `site` is empty if it may run on any appliance."""

    key: str
    kind: JobKind
    at_s: float
    site: str
    lines: int
    pause_s: float = 0.0
    exit_code: int = 0
    retries: int = 0
    gpus: str | None = None
    stop_after_s: float | None = None

    def body(self, journal: Path, bundle: str) -> dict[str, Any]:
        variables = {
            "JOURNAL": str(journal / self.key),
            "LINES_WANTED": str(self.lines),
            "PAUSE": f"{self.pause_s:g}",
            "CODE": str(self.exit_code),
            "SENT": "yes" if self.kind is JobKind.FILES else "",
        }
        return {
            "kind": "service" if self.kind is JobKind.SERVICE else "job",
            "name": self.key,
            "key": self.key,
            "command": ["/bin/sh", "-c", _JOB],
            "cpus": "20m",
            "memory_mib": 32,
            "gpus": self.gpus,
            "on": LABEL | ({"site": self.site} if self.site else {}),
            "retries": self.retries,
            "backoff_s": 1 if self.retries else None,
            "variables": variables,
            "bundle": bundle if self.kind is JobKind.FILES else None,
            "grace_s": 2,
        }


_MIX = (
    *(JobKind.SHORT,) * 6,
    *(JobKind.LONG,) * 4,
    *(JobKind.TALKATIVE,) * 2,
    *(JobKind.FAILING,) * 2,
    *(JobKind.FILES,) * 2,
    *(JobKind.STOPPED,) * 2,
    JobKind.SERVICE,
)


def jobs(seed: int, day_s: float, per_s: float) -> list[Job]:
    """`per_s` jobs are submitted each second, at random moments."""
    chance = random.Random(f"jobs {seed}")
    moments = sorted(chance.uniform(0, day_s) for _ in range(round(day_s * per_s)))
    return [_job(f"job-{number:05}", at, chance) for number, at in enumerate(moments)]


def _job(key: str, at: float, chance: random.Random) -> Job:
    kind, site = chance.choice(_MIX), chance.choice([*SITES, ""])
    gpus = chance.choice([None, None, "1GiB"])
    stopped, lines = chance.uniform(1, 15), chance.randrange(40)
    match kind:
        case JobKind.LONG:
            return Job(key, kind, at, site, chance.randrange(4, 20), pause_s=1, gpus=gpus)
        case JobKind.TALKATIVE:
            return Job(key, kind, at, site, 2000, gpus=gpus)
        case JobKind.FAILING:
            return Job(key, kind, at, site, lines, exit_code=3, retries=2)
        case JobKind.STOPPED | JobKind.SERVICE:
            return Job(key, kind, at, site, 100_000, pause_s=1, stop_after_s=stopped)
        case _:
            return Job(key, kind, at, site, lines, gpus=gpus)


@dataclass(slots=True)
class Noted:
    """The notes of one job: starts and ends of attempts by their numbers, and the lines that each could not print."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    unprinted: dict[int, set[int]] = field(default_factory=dict)


def read_journal(path: Path) -> Noted:
    """Of a job that never ran, nothing is noted."""
    noted = Noted()
    for line in path.read_text().splitlines() if path.exists() else ():
        word, number, *more = line.split()
        match word:
            case "start":
                noted.starts.append(int(number))
            case "end":
                noted.ends.append(int(number))
            case _:
                noted.unprinted.setdefault(int(number), set()).add(int(more[0]))
    return noted


def complete(printed: Sequence[str], job: Job, attempt: int, noted: Noted, sent: str) -> str:
    """The difference between the log of an ended attempt and its output; empty if they are equal."""
    missing = noted.unprinted.get(attempt, set())
    wanted = [f"line {number}" for number in range(job.lines) if number not in missing]
    if job.kind is JobKind.FILES:
        wanted.append(sent)
    if list(printed) == wanted:
        return ""
    if missing:  # the disk was full: a part of a line may be left of those
        remaining = iter(printed)
        if all(any(one.endswith(line) for one in remaining) for line in wanted):
            return ""
    return f"{len(printed)} lines, not the {len(wanted)} that it printed"
