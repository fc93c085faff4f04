"""The kind of each error that NVIDIA's driver reports by number (Xid): its effect on the GPU.

Used by `device_faults`.

Of an application: it ends with the application and says nothing about the GPU. Notices: also all that are not listed.
Fatal (reset, reboot, power): the GPU takes no new work until then. Source: NVIDIA, "Analyzing Xid Errors with the Xid
Catalog" (its column of immediate actions: RESTART_APP, IGNORE, RESET_GPU, RESTART_BM), and for 109 the list of NVIDIA's
Kubernetes device plugin, which counts it among the applications' own. 48 comes with 94 when the memory error was
contained, and then belongs to the application, too. 144 to 150 and 154 depend on details that NVML does not give: the
recovery action that the driver asks for decides (`health`). `messages.devices` has the words for each number.
"""

from __future__ import annotations

from commonage.domain.reasons.devices import FatalXid, Remedy, XidReported

DOUBLE_BIT, CONTAINED = 48, 94
CONTAINED_WITHIN_S = 30.0  # the messages of one memory error come together


_APPLICATION = (
    *(8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89),
    *(94, *range(96, 106), 109, *range(126, 136), 137, 139, 141),
)
_RESET = (46, 48, 61, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158, 169)
_REMEDIES = {
    **dict.fromkeys(_RESET, Remedy.RESET),
    **dict.fromkeys((79, 151, 167), Remedy.REBOOT),
    54: Remedy.POWER,
}


def is_fatal(number: int) -> bool:
    return number in _REMEDIES


def fault_of(number: int, index: int) -> FatalXid:
    return FatalXid(number=number, index=index, remedy=_REMEDIES[number])


def notice_of(number: int, seen_at: float) -> XidReported:
    return XidReported(number=number, seen_at=seen_at, by_application=number in _APPLICATION)
