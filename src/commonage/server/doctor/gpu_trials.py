"""Tests the promises of each isolation level on real, unused GPUs. Called by `commonage doctor gpu`.

For each GPU and level two shares are made: one for the program under test, and one for a neighbor that computes
meanwhile. The program then allocates memory above its share, looks for other GPUs, and does both again without its
variables and outside its cgroup. `PROMISES` lists the checks that must hold; docs/concepts/gpu-sharing.md describes
them in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, Isolation, Share
from commonage.gpu.cuda.probe import digits
from commonage.gpu.isolation.level import Level
from commonage.gpu.isolation.mps import Mps
from commonage.messages import texts
from commonage.server.doctor.gpu_probes import Answer, Bench, Burning, Place

MIN_SHARE_MIB = 1024
_SMALL_MIB = 64


class Check(StrEnum):
    BEYOND = "take memory beyond the share"
    NEIGHBOUR = "disturb the neighbour meanwhile"
    HIDDEN = "see another GPU"
    EMPTY = "take memory beyond the share with an empty environment"
    EMPTY_HIDDEN = "see another GPU with an empty environment"
    GROUP = "take memory beyond the share from another control group"


PROMISES: dict[Isolation, frozenset[Check]] = {
    Isolation.DRIVER_LIMIT: frozenset({Check.BEYOND, Check.NEIGHBOUR, Check.HIDDEN, Check.EMPTY}),
    Isolation.MIG: frozenset({Check.BEYOND, Check.NEIGHBOUR, Check.HIDDEN}),
    Isolation.MPS: frozenset({Check.BEYOND, Check.NEIGHBOUR, Check.HIDDEN}),  # EMPTY too, in exclusive-process mode
    Isolation.PRELOAD: frozenset({Check.BEYOND, Check.NEIGHBOUR, Check.HIDDEN}),
    Isolation.ACCOUNTED: frozenset({Check.HIDDEN}),
    Isolation.COOPERATIVE: frozenset({Check.HIDDEN}),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One check on one GPU at one level. `label`: the display name of the GPU. `held` is None if the check could not
    run; `found` says why.
    """

    device: str
    index: int
    label: str
    model: str
    level: Isolation
    check: str
    promised: bool
    held: bool | None
    found: str

    @property
    def is_broken(self) -> bool:
        return self.promised and self.held is False


@dataclass(frozen=True, slots=True)
class _Set:
    """The common inputs of the checks of one GPU and level: where program and neighbor run, and the size of a share."""

    device: Device
    level: Isolation
    place: Place
    neighbour: Place | None
    share_mib: int
    promises: frozenset[Check]

    @property
    def beyond_mib(self) -> int:
        """Memory to allocate: 1.5 times the share, so that a limit in between shows."""
        return self.share_mib + max(512, self.share_mib // 2)

    def trial(self, check: Check, held: bool | None, found: str) -> Trial:
        device = self.device
        promised = check in self.promises
        return Trial(device.uuid, device.index, device.label, device.model, self.level, check, promised, held, found)


class GpuTrials:
    """The trials on `devices`, at `levels`. `free_mib`: free now on each, by UUID."""

    def __init__(
        self, devices: Sequence[Device], levels: Sequence[Level], bench: Bench, free_mib: dict[str, int]
    ) -> None:
        self._devices, self._levels, self._bench, self._free_mib = devices, levels, bench, free_mib

    def run(self) -> Iterator[Trial]:
        for device in self._devices:
            for level in self._levels:
                unavailable = level.why_unavailable(device)
                reasons = device.faults or ((unavailable,) if unavailable else ())
                why = texts(reasons) or self._no_room(device)
                if why:
                    yield _not_tried(device, level.isolation, why)
                else:
                    yield from self._try(device, level)

    def _no_room(self, device: Device) -> str:
        if device.parent_uuid is not None:
            return ""
        share_mib = _share_mib(device)
        needs, free = 3 * share_mib, self._free_mib.get(device.uuid, device.memory_mib)
        return "" if free >= needs else f"{free} MiB are free, {needs} are needed to tell a limit from a full GPU"

    def _try(self, device: Device, level: Level) -> Iterator[Trial]:
        share, promises = _share_of(device, level.isolation), PROMISES[level.isolation]
        # A MIG instance has no second share; its neighbors are other instances.
        names = ("tried",) if device.parent_uuid else ("tried", "neighbour")
        try:
            with self._bench.held(level, share, names) as (place, *neighbours):
                if isinstance(level, Mps) and level.is_exclusive(device.uuid):
                    promises |= {Check.EMPTY}
                neighbour = neighbours[0] if neighbours else None
                yield from self._checks(_Set(device, level.isolation, place, neighbour, share.memory_mib, promises))
        except EngineFailure as error:
            yield _not_tried(device, level.isolation, f"it cannot be applied: {error.message}", held=False)

    def _checks(self, there: _Set) -> Iterator[Trial]:
        burning = None
        if there.neighbour is not None:
            burning = self._bench.burn(there.neighbour, min(_SMALL_MIB, there.share_mib // 4))
        try:
            answer = self._fill(there)
            yield _beyond(there, Check.BEYOND, answer, must_work=True)
            yield _hidden(there, Check.HIDDEN, answer, self._others(there))
            uuid = digits(there.device.uuid)
            yield _beyond(there, Check.EMPTY, self._fill(there, "--uuid", uuid, bare=True))
            seen = self._bench.ask(there.place, "look", bare=True)
            yield _hidden(there, Check.EMPTY_HIDDEN, seen, self._others(there))
            yield self._from_another_group(there)
            done = self._bench.end([burning])[0] if burning is not None else None
        finally:
            if burning is not None:
                burning.kill()
        yield _undisturbed(there, burning, done)

    def _fill(self, there: _Set, *words: str, bare: bool = False) -> Answer:
        return self._bench.ask(there.place, "fill", "--max-mib", str(there.beyond_mib), *words, bare=bare)

    def _others(self, there: _Set) -> int:
        return len([device for device in self._devices if device.uuid != there.device.uuid])

    def _from_another_group(self, there: _Set) -> Trial:
        if not there.place.groups:
            return there.trial(Check.GROUP, None, "there are no control groups here")
        answer = self._fill(there, "--leave-group")
        if not answer.get("left_group", False):
            return there.trial(Check.GROUP, True, "it cannot leave its group")
        trial = _beyond(there, Check.GROUP, answer)
        return replace(trial, found=f"it could leave its group, for workloads run as the server does; {trial.found}")


def _share_mib(device: Device) -> int:
    return max(MIN_SHARE_MIB, device.memory_mib // 4)


def _share_of(device: Device, level: Isolation) -> Share:
    whole = device.parent_uuid is not None
    memory_mib = device.memory_mib if whole else _share_mib(device)
    compute = 1000 if whole else max(1, memory_mib * 1000 // device.memory_mib)
    return Share(device.uuid, device.index, device.model, memory_mib, compute, whole, device.memory_mib, False, level)


def _not_tried(device: Device, level: Isolation, why: str, held: bool | None = None) -> Trial:
    promised = held is False
    return Trial(device.uuid, device.index, device.label, device.model, level, "hold a share", promised, held, why)


def _beyond(there: _Set, check: Check, answer: Answer, must_work: bool = False) -> Trial:
    """`must_work`: a share without any usable memory fails the check."""
    got, error = int(answer.get("allocated_mib", 0)), answer["error"]
    if error and got == 0:
        return there.trial(check, not must_work, f"it got nothing: {error}")
    held = got <= there.share_mib
    words = f"it got {got} MiB, the share is {there.share_mib}"
    return there.trial(check, held, f"{words}{f'; then: {error}' if error else ''}")


def _hidden(there: _Set, check: Check, answer: Answer, others: int) -> Trial:
    seen = set(answer.get("seen", ()))
    if answer["error"] and not seen:
        return there.trial(check, True if check is Check.EMPTY_HIDDEN else None, f"it sees none: {answer['error']}")
    strange = seen - {digits(there.device.uuid)}
    if not strange and not others:
        return there.trial(check, None, "there is no other GPU")
    return there.trial(check, not strange, f"it sees {len(strange)} other GPUs" if strange else "it sees its own only")


def _undisturbed(there: _Set, burning: Burning | None, done: Answer | None) -> Trial:
    if burning is None or done is None:
        return there.trial(Check.NEIGHBOUR, None, "the hardware has no second share of an instance")
    if not burning.began or done["error"]:
        return there.trial(Check.NEIGHBOUR, False, f"it failed: {done['error'] or 'it did not begin'}")
    with suppress(ZeroDivisionError):
        rate = done["launches"] / done["seconds"]
        return there.trial(Check.NEIGHBOUR, done["launches"] > 0, f"it went on, {rate:.1f} kernels a second")
    return there.trial(Check.NEIGHBOUR, False, "it computed nothing")
