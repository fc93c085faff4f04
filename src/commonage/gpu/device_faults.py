"""Remembers the Xids of GPUs, which NVML reports only once. Fatal ones are kept over a restart of the server.

A fatal Xid is cleared after a reset (the node was booted, another driver loaded, the GPU reset), or by an admin. The
others are shown for an hour. Used by `nvml`, under its lock; the meaning of Xids is in `xid`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from commonage.domain.reasons import Reason
from commonage.gpu.nvml import xid

log = logging.getLogger(__name__)
SHOWN_S = 3600.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAX = 16  # per GPU


@dataclass(frozen=True, slots=True)
class ResetMarkers:
    """Values that change when a GPU is reset. None: not available.

    They are the boot id of its node, the driver version, the millijoules counted since the driver was loaded, and the
    recovery action that the driver requests (0: none).
    """

    boot: str
    driver: str
    energy_mj: int | None = None
    recovery: int | None = None


@dataclass(slots=True)
class _Fatal:
    """A fatal Xid. `asked`: the driver has asked for a recovery since."""

    number: int
    at: float
    boot: str
    driver: str
    energy_mj: int | None
    asked: bool = False

    def is_over(self, markers: ResetMarkers) -> bool:
        pairs = (markers.boot, self.boot), (markers.driver, self.driver)
        if any(now and before and now != before for now, before in pairs):
            return True
        if markers.energy_mj is not None and self.energy_mj is not None and markers.energy_mj < self.energy_mj:
            return True
        return self.asked and markers.recovery == 0


class DeviceFaults:
    """Xids by the uuid of the GPU (of the MIG instance, for those of an application).

    `path`: the file that keeps fatal ones, if any. `now` gives unix seconds.
    """

    def __init__(self, path: Path | None, now: Callable[[], float]) -> None:
        self._path, self._now = path, now
        self._fatal: dict[str, list[_Fatal]] = self._read()
        self._notes: dict[str, dict[int, float]] = {}
        self.last: dict[str, int] = {}  # the last Xid of each GPU

    def note_xid(self, device: str, number: int, markers: ResetMarkers, instance: str | None = None) -> None:
        """The driver reported this Xid of the GPU, or of an application on an instance of it."""
        log.warning("GPU %s: Xid %d", instance or device, number)
        self.last[device] = number
        at = self._now()
        if number == xid.CONTAINED:
            self._contained(device, at)
        if xid.is_fatal(number) and not self._is_contained(device, number, at):
            known = self._fatal.setdefault(device, [])
            if len(known) < _MAX and all(one.number != number for one in known):
                known.append(
                    _Fatal(number, at, markers.boot, markers.driver, markers.energy_mj, bool(markers.recovery))
                )
                self._write()
        else:
            self._notes.setdefault(instance or device, {})[number] = at

    def _contained(self, device: str, at: float) -> None:
        """The fatal memory error from a moment ago affected only one application."""
        before = self._fatal.get(device, [])
        kept = [one for one in before if one.number != xid.DOUBLE_BIT or at - one.at > xid.CONTAINED_WITHIN_S]
        if len(kept) < len(before):
            self._notes.setdefault(device, {})[xid.DOUBLE_BIT] = at
            self._keep(device, kept)

    def _is_contained(self, device: str, number: int, at: float) -> bool:
        when = self._notes.get(device, {}).get(xid.CONTAINED, float("-inf"))
        return number == xid.DOUBLE_BIT and at - when <= xid.CONTAINED_WITHIN_S

    def faults(self, device: str, index: int, markers: ResetMarkers) -> tuple[Reason, ...]:
        """Why the GPU takes no new work because of Xids. Drops those that are cleared by now."""
        known = self._fatal.get(device, [])
        left = [one for one in known if not one.is_over(markers)]
        if len(left) < len(known):
            log.warning("GPU %s was reset; its earlier Xids are cleared", device)
            self._keep(device, left)
        for one in left:
            one.asked = one.asked or bool(markers.recovery)
            one.energy_mj = markers.energy_mj if markers.energy_mj is not None else one.energy_mj
        return tuple(xid.fault_of(one.number, index) for one in left)

    def notices(self, *uuids: str) -> tuple[Reason, ...]:
        """Notices of the last hour about these uuids (a GPU and its instance)."""
        now = self._now()
        notices: list[Reason] = []
        for uuid in uuids:
            notes = {number: at for number, at in self._notes.get(uuid, {}).items() if 0 <= now - at < SHOWN_S}
            self._notes[uuid] = notes
            notices += [xid.notice_of(number, at) for number, at in sorted(notes.items())]
        return tuple(notices)

    def forget(self, device: str | None) -> None:
        """An admin clears the faults of this GPU (None: of all)."""
        for uuid in [device] if device is not None else list(self._fatal):
            self._keep(uuid, [])

    def _keep(self, device: str, left: list[_Fatal]) -> None:
        if left:
            self._fatal[device] = left
        elif self._fatal.pop(device, None) is None:
            return
        self._write()

    def _read(self) -> dict[str, list[_Fatal]]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            read = json.loads(self._path.read_text())
            return {uuid: [_Fatal(**one) for one in known] for uuid, known in read.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("the faults of GPUs in %s cannot be read, and are forgotten: %s", self._path, error)
            return {}

    def _write(self) -> None:
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps({uuid: [asdict(one) for one in known] for uuid, known in self._fatal.items()}))
            os.replace(new, self._path)
        except OSError as error:
            log.warning("the faults of GPUs are not kept over a restart: %s", error)


def boot_id(path: Path = BOOT_ID) -> str:
    """The id of this boot of the node; empty if the system does not give it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
