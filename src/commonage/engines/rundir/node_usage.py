"""Reads the resource usage of this node from /proc and /sys. For local engines and, of the standard library alone,
agents.

Both use one reader, so that a node shows the same figures on every engine. A missing or odd file makes a figure
unknown, and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from commonage.domain.node_usage import MIN_SPAN_S, NodeCounters, NodeUsage, Rates, rates_between

_MIB = 1024 * 1024
_SECTOR = 512  # bytes of a sector in /proc/diskstats, whatever the disk has
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal; guests are part of user
_VIRTUAL = re.compile(r"(lo|veth|docker|br-|virbr|cni|cali|flannel|vxlan|tun|tap|dummy|ifb|kube|gwbridge)")
_PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "x86_pkg_temp")


@dataclass(slots=True)
class NodeUsageReader:
    """Each call of `measure` gives the rates since the previous one. `root` is where the node's /proc and /sys are.

    `network` is the file of the interfaces there. /proc/net always shows the reader's own network namespace.
    `clock` does not continue while the computer sleeps, as the counters do not.
    """

    root: Path = Path("/")
    cpus: Callable[[], set[int]] = lambda: os.sched_getaffinity(0)
    clock: Callable[[], float] = time.monotonic
    network: str = "proc/net/dev"
    _before: NodeCounters | None = field(default=None, init=False)
    _rates: Rates = field(default_factory=Rates, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def measure(self, *folders: Path) -> NodeUsage:
        """`folders` are on the disks that matter. Blocks for a moment."""
        with self._lock:
            rates = self._measure_rates()
        used, total = _fullest(folders)
        return NodeUsage(
            **asdict(rates),
            memory_mib=self._memory_mib(),
            disk_used_mib=used,
            disk_total_mib=total,
            temperature_c=self._temperature_c(),
            load=_number(self._text("proc/loadavg").split()[:1]),
        )

    def _measure_rates(self) -> Rates:
        if self._before is not None and 0 <= self.clock() - self._before.at < MIN_SPAN_S:
            return self._rates
        now = self._counters()
        self._rates = Rates() if self._before is None else rates_between(self._before, now)
        self._before = now
        return self._rates

    def _counters(self) -> NodeCounters:
        read, written = self._disks()
        received, sent = self._network()
        return NodeCounters(self.clock(), self._cpu_s(), read, written, received, sent)

    # --- processor and memory

    def _cpu_s(self) -> dict[str, float]:
        if self._is_limited("cpu.max") and (used := self._table("sys/fs/cgroup/cpu.stat").get("usage_usec")):
            return {"container": used / 1e6}
        ticks, mine = os.sysconf("SC_CLK_TCK"), {f"cpu{number}" for number in self.cpus()}
        rows = [line.split() for line in self._lines("proc/stat")]
        return {
            row[0]: sum(int(row[1 + place]) for place in _BUSY) / ticks
            for row in rows
            if row and row[0] in mine and len(row) > 1 + max(_BUSY) and _are_numbers(row[1:])
        }

    def _memory_mib(self) -> int | None:
        """Without what the kernel can take back at once; of a container with a limit, the container's."""
        current = _number([self._text("sys/fs/cgroup/memory.current").strip()])
        if self._is_limited("memory.max") and current is not None:
            cached = self._table("sys/fs/cgroup/memory.stat").get("inactive_file", 0)
            return int(max(0, current - cached)) // _MIB
        table = self._table("proc/meminfo")
        if "MemTotal" not in table or "MemAvailable" not in table:
            return None
        return int(table["MemTotal"] - table["MemAvailable"]) // 1024

    def _is_limited(self, name: str) -> bool:
        """True in a container that has this limit."""
        return self._text(f"sys/fs/cgroup/{name}").partition(" ")[0].strip().isdigit()

    def _temperature_c(self) -> float | None:
        found: list[Path] = []
        for name in self.root.glob("sys/class/hwmon/hwmon*/name"):
            if self._text(name).strip() in _PROCESSOR_SENSORS:
                found += name.parent.glob("temp*_input")
        for kind in () if found else self.root.glob("sys/class/thermal/thermal_zone*/type"):
            if self._text(kind).strip() in _PROCESSOR_SENSORS:
                found.append(kind.parent / "temp")
        values = [_number([self._text(place).strip()]) for place in found]
        sane = [value / 1000 for value in values if value is not None and 0 < value < 150_000]
        return max(sane, default=None)

    # --- disks and network

    def _disks(self) -> tuple[dict[str, float], dict[str, float]]:
        """Bytes by physical disk: no partitions, loops, RAM disks or layers above disks, which would count twice."""
        read, written = {}, {}
        for row in (line.split() for line in self._lines("proc/diskstats")):
            if len(row) >= 10 and _are_numbers(row[3:10]) and (self.root / "sys/block" / row[2] / "device").exists():
                read[row[2]], written[row[2]] = float(row[5]) * _SECTOR, float(row[9]) * _SECTOR
        return read, written

    def _network(self) -> tuple[dict[str, float], dict[str, float]]:
        """Bytes by physical interface; in a container without one, by all that are not known as virtual."""
        rows = {}
        for line in self._lines(self.network):
            name, colon, rest = line.partition(":")
            values = rest.split()
            if colon and len(values) >= 9 and _are_numbers(values[:9]):
                rows[name.strip()] = float(values[0]), float(values[8])
        physical = {name for name in rows if (self.root / "sys/class/net" / name / "device").exists()}
        chosen = physical or {name for name in rows if not _VIRTUAL.match(name)}
        return {name: rows[name][0] for name in chosen}, {name: rows[name][1] for name in chosen}

    # --- files

    def _text(self, name: str | Path) -> str:
        with suppress(OSError):
            return (self.root / name).read_text(encoding="utf-8", errors="replace")
        return ""

    def _lines(self, name: str) -> list[str]:
        return self._text(name).splitlines()

    def _table(self, name: str) -> dict[str, int]:
        """`name value` or `name: value unit` in each line."""
        return dict(_pairs(self._lines(name)))


def _pairs(lines: Sequence[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        words = line.replace(":", " ").split()
        if len(words) >= 2 and _are_numbers(words[1:2]):
            yield words[0], int(words[1])


def _are_numbers(words: Sequence[str]) -> bool:
    return all(word.isascii() and word.isdigit() for word in words)


def _number(words: Sequence[str]) -> float | None:
    with suppress(ValueError, IndexError):
        return float(words[0])
    return None


def _fullest(folders: Sequence[Path]) -> tuple[int | None, int | None]:
    """Used and total MiB of the disk with the least free space."""
    found = []
    for folder in folders:
        with suppress(OSError):
            disk = shutil.disk_usage(folder)
            found.append((disk.free, disk.used // _MIB, disk.total // _MIB))
    _, used, total = min(found, default=(0, None, None))
    return used, total
