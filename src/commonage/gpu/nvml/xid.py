"""The meaning of the NVIDIA driver's error messages (Xids) for a GPU: one table. Called by `device_faults`.

Three kinds: of an application, which ends with it and says nothing about the GPU; notices; and fatal, after which the
GPU takes no new work until it was reset or checked. Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (its
column of immediate actions: RESTART_APP, IGNORE, RESET_GPU, RESTART_BM), and for 109 the list of NVIDIA's Kubernetes
device plugin, which counts it among the applications' own. 48 comes with 94 when the memory error was contained, and
then belongs to the application, too. 144 to 150 and 154 depend on details that NVML does not give: the recovery action
that the driver asks for decides (`health`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DOUBLE_BIT, CONTAINED = 48, 94
CONTAINED_WITHIN_S = 30.0  # the messages of one memory error come together


class Kind(StrEnum):
    """The effect of an Xid on the GPU."""

    APPLICATION = "application"
    NOTICE = "notice"
    RESET = "reset"
    REBOOT = "reboot"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class Meaning:
    """The driver's message, in few words."""

    kind: Kind
    words: str


_COPY, _VIDEO = "fault of a copy engine", "fault of a video or image engine"
_TABLE: dict[Kind, dict[int, str]] = {
    Kind.APPLICATION: {
        8: "GPU stopped processing",
        11: "invalid commands",
        13: "graphics engine exception, often an access out of bounds",
        25: "invalid commands",
        31: "memory page fault, an access to an address that is not its own",
        32: "invalid or corrupted commands",
        43: "GPU stopped processing for it",
        45: "cleaned up after an error before",
        60: _VIDEO,
        68: _VIDEO,
        69: "graphics engine class error",
        80: "corrupted data sent to the GPU",
        94: "memory error, contained: only this application was hit",
        109: "context switch timeout",
        137: "NVLink access that was not allowed",
        141: "CUDA fast path error",
        **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
        **dict.fromkeys((82, 83, 84, 86, 88, 89, *range(96, 106), 139), _VIDEO),
    },
    Kind.NOTICE: {
        37: "driver firmware error",
        38: "driver firmware error",
        44: "fault during a context switch",
        63: "a broken row or page of memory was noted, and is replaced at the next reset",
        66: "illegal access by the driver",
        67: "illegal access by the driver",
        92: "many corrected memory errors",
        93: "its infoROM is worn",
        121: "error on the link to the CPU",
        154: "the driver asks for another way to recover",
        157: "a broken part could not be retired",
        160: "a channel was retired",
        161: "a channel could not be retired",
        171: "uncorrectable error of its memory",
        172: "uncorrectable error of its caches",
        **dict.fromkeys(range(144, 151), "NVLink error"),
    },
    Kind.RESET: {
        46: "GPU stopped processing",
        48: "uncorrectable memory error",
        61: "its micro-controller stopped",
        62: "its micro-controller halted",
        64: "a broken row or page of memory could not be replaced",
        74: "NVLink error",
        95: "uncontained memory error",
        110: "security fault",
        119: "its system processor (GSP) does not answer",
        120: "its system processor (GSP) failed",
        136: "NVLink training failed",
        140: "unrecovered memory error",
        143: "initialisation failed",
        155: "NVLink error",
        156: "a broken part is retired",
        158: "fatal timeout",
        169: "its security processor halted",
    },
    Kind.REBOOT: {
        79: "fell off the bus",
        151: "key rotation failed",
        167: "fatal timeout of PCI Express",
    },
    Kind.POWER: {54: "auxiliary power is not connected"},
}
MEANINGS = {number: Meaning(kind, words) for kind, table in _TABLE.items() for number, words in table.items()}
_UNKNOWN = Meaning(Kind.NOTICE, "not known here; see NVIDIA's Xid catalogue")


def meaning_of(number: int) -> Meaning:
    """The meaning of this Xid; one that is not in the table is a notice and stops nothing."""
    return MEANINGS.get(number, _UNKNOWN)


def is_fatal(number: int) -> bool:
    """True if the GPU takes no new work after it."""
    return meaning_of(number).kind in (Kind.RESET, Kind.REBOOT, Kind.POWER)


def fault_of(number: int, index: int) -> str:
    """The fault of GPU `index` after a fatal Xid: half a sentence, with what to do."""
    found = meaning_of(number)
    what = {
        Kind.REBOOT: "reboot the node, and have the GPU looked at if it happens again",
        Kind.POWER: "check its power cables, then reboot",
    }.get(found.kind, f"end what runs on it and reset it with `nvidia-smi --gpu-reset -i {index}`, or reboot")
    return (
        f"had Xid {number} ({found.words}): {what}; then it comes back by itself, "
        f"or with `commonage node resume NODE --gpu {index}`"
    )


def notice_of(number: int) -> str:
    """The notice for an Xid that stops nothing."""
    found = meaning_of(number)
    whose = "an application had" if found.kind is Kind.APPLICATION else "the driver reported"
    return f"{whose} Xid {number} ({found.words})"
