"""The resources that a workload requests: CPUs, memory and a GPU request, as users write it.

A GPU request is one of: whole GPUs (`2`), a fraction of one (`0.25`, `1/3`), an amount of VRAM (`6GiB`); each may be
restricted to a model (`A100:2`, `A100:6GiB`) or to one of several (`A100|H100:2`). A label restricts the node:
`zone=basement`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction

from commonage import units
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device
from commonage.domain.sites import SiteSet
from commonage.units import quoted

_CPUS = re.compile(r"(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?P<milli>m?)", re.ASCII)
MAX_CPUS_MILLI = 10_000_000


def parse_memory(text: str | int, *, field: str = "memory") -> int:
    """MiB, as `units.parse_memory` reads it. Raises InvalidInput(code="invalid-memory")."""
    try:
        return units.parse_memory(text, field)
    except units.UnitError as error:
        raise InvalidInput(str(error), field=field, code="invalid-memory") from error


def parse_duration(text: str, *, field: str = "time", zero: bool = False, max_s: int = units.MAX_DURATION_S) -> int:
    """Seconds, as `units.parse_duration` reads it. Raises InvalidInput(code="invalid-time")."""
    try:
        return units.parse_duration(text, field, zero=zero, max_s=max_s)
    except units.UnitError as error:
        raise InvalidInput(str(error), field=field, code="invalid-time") from error


def format_memory(mib: int) -> str:
    """`6 GiB`, `1.5 GiB`, `512 MiB`; from 10 GiB on one decimal, rounded down so that it never overstates."""
    if mib >= 10 * 1024 or (mib >= 1024 and mib * 10 % 1024 == 0):
        gib = (Decimal(mib) / 1024).quantize(Decimal("0.1"), ROUND_FLOOR)
        return f"{gib.normalize():f} GiB"
    return f"{mib} MiB"


def parse_cpus(text: str | float, *, field: str = "cpus") -> int:
    """Thousandths of a core from `2`, `0.5`, `1500m`, rounded up. Raises InvalidInput for zero or less."""
    shown = f"{text:f}" if isinstance(text, float) else str(text).strip()
    match = _CPUS.fullmatch(shown.removeprefix("-"))
    if match is None:
        raise InvalidInput(
            f"{field} {quoted(text)} is not a number of cores; write it like 2, 0.5 or 1500m",
            field=field,
            code="invalid-cpus",
        )
    milli = math.ceil(Decimal(match["number"]) * (1 if match["milli"] else 1000))
    if shown.startswith("-") or not 0 < milli <= MAX_CPUS_MILLI:
        raise InvalidInput(
            f"{field} must be above 0 and at most 10000 cores, not {quoted(text)}",
            field=field,
            code="invalid-cpus",
        )
    return milli


def format_cpus(milli: int) -> str:
    return f"{(Decimal(milli) / 1000).normalize():f}"


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 30 min`, `2 d 4 h`: two units at most, for reading."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 10 and rest:
        return f"{minutes} min {rest} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,62}", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
MAX_WHOLE_GPUS = 1024
MAX_MODELS = 16
_MAX_MODEL_TEXT = 240
MAX_LABELS = 16


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """Exactly one of `whole` (GPUs), `fraction_milli` (thousandths of a GPU), `vram_mib` is positive.

    `model` is part of a model's name, or several alternatives: `A100|H100`.
    """

    whole: int = 0
    fraction_milli: int = 0
    vram_mib: int = 0
    model: str | None = None

    def __str__(self) -> str:
        if self.whole:
            amount = f"{self.whole} whole GPU{'s' if self.whole > 1 else ''}"
        elif self.vram_mib:
            amount = f"{format_memory(self.vram_mib)} of VRAM"
        else:
            amount = f"{self.fraction_milli / 1000:g} of a GPU"
        return f"{amount} ({self.model.replace('|', ' or ')})" if self.model else amount

    @property
    def text(self) -> str:
        if self.whole:
            amount = str(self.whole)
        elif self.vram_mib:
            amount = f"{self.vram_mib}MiB"
        else:
            amount = f"{self.fraction_milli / 1000:g}"
        return f"{self.model}:{amount}" if self.model else amount

    def memory_on(self, device_memory_mib: int) -> int:
        """MiB this takes of one GPU of that size (each GPU, for whole ones)."""
        if self.whole:
            return device_memory_mib
        return self.vram_mib or device_memory_mib * self.fraction_milli // 1000

    def compute_on(self, device_memory_mib: int) -> int:
        """Compute thousandths this takes of one GPU of that size: in proportion to its memory, at least 1."""
        if self.whole:
            return 1000
        if self.fraction_milli:
            return self.fraction_milli
        return max(1, min(1000, self.vram_mib * 1000 // device_memory_mib)) if device_memory_mib else 1000


@dataclass(frozen=True, slots=True)
class Request:
    """The resources of one workload. CPUs in thousandths of a core, memory in MiB.

    `labels` are those that its node must carry (`node` and `site` name the node and the site themselves); with
    `one_numa` several GPUs must be on the same NUMA node. `on_full_disk`: it may start where a disk is nearly full.
    `sites`: its candidate sites, None: all; the scheduler sets them, because they follow from resources.
    """

    cpus_milli: int = 1000
    memory_mib: int = 1024
    gpu: GpuRequest | None = None
    labels: tuple[tuple[str, str], ...] = ()
    one_numa: bool = False
    on_full_disk: bool = False
    sites: SiteSet | None = None

    def __str__(self) -> str:
        cpus = f"{format_cpus(self.cpus_milli)} CPU{'' if self.cpus_milli == 1000 else 's'}"
        base = f"{cpus}, {format_memory(self.memory_mib)} of memory"
        where = "".join(f", {key}={value}" for key, value in self.labels)
        numa = " on one NUMA node" if self.one_numa and self.gpu else ""
        return f"{base}{f', {self.gpu}' if self.gpu else ''}{numa}{where}"


def _invalid(text: object, why: str) -> InvalidInput:
    return InvalidInput(f"gpus {quoted(text)} {why}", field="gpus", code="invalid-gpus")


def parse_gpus(text: str | float | None) -> GpuRequest | None:
    """A GPU request from `2`, `0.25`, `1/3`, `6GiB`, `A100:2`, `A100:6GiB`, `A100`; None for no GPU (`0`, ``, None).

    Raises InvalidInput, which quotes the input.
    """
    if text is None:
        return None
    shown = f"{text:.6f}".rstrip("0").rstrip(".") if isinstance(text, float) else str(text).strip()
    model, colon, amount = (part.strip() for part in shown.rpartition(":"))
    if not colon and re.match("[A-Za-z]", amount) and amount != "none" and not isinstance(text, float):
        model, amount = amount, "1"
    # Each is compared with each device at every pass of the scheduler.
    if len(model) > _MAX_MODEL_TEXT:
        raise _invalid(text, f"names models in {len(model)} characters; at most {_MAX_MODEL_TEXT} are allowed")
    names = list(dict.fromkeys(name.strip() for name in model.split("|")))
    if len(names) > MAX_MODELS:
        raise _invalid(text, f"names {len(names)} models; at most {MAX_MODELS} are allowed")
    if (colon or model) and not all(_MODEL.fullmatch(name) for name in names):
        raise _invalid(text, "names no model; write it like A100:2 or A100:6GiB")
    model = "|".join(names)
    request = _amount(amount, text)
    if request is None:
        if model:
            raise _invalid(text, f"requests no GPU of a model; leave it out, or request at least {model}:1")
        return None
    return replace(request, model=model or None)


def _amount(amount: str, asked: object) -> GpuRequest | None:
    if amount in ("", "0", "none"):
        return None
    if re.fullmatch(r"\d{1,6}", amount, re.ASCII):
        whole = int(amount)
        if whole > MAX_WHOLE_GPUS:
            raise _invalid(asked, f"is more than {MAX_WHOLE_GPUS} GPUs; for VRAM add a unit, like {amount}MiB")
        return GpuRequest(whole=whole) if whole else None
    if re.fullmatch(r"\d*\.\d{1,6}|\d{1,4}/\d{1,4}", amount, re.ASCII):
        return _fraction(amount, asked)
    if re.fullmatch(r"\d.*[A-Za-z]", amount, re.ASCII):
        return _vram(amount, asked)
    raise _invalid(asked, "is not a share of a GPU; write 2 (GPUs), 0.25 or 1/3 (of a GPU), 6GiB (VRAM) or A100:1")


def _vram(amount: str, asked: object) -> GpuRequest:
    try:
        return GpuRequest(vram_mib=parse_memory(amount, field="gpus"))
    except InvalidInput:
        raise _invalid(asked, "is not an amount of VRAM; write it like 6GiB or 512MiB, above 0") from None


def _fraction(amount: str, asked: object) -> GpuRequest | None:
    try:
        fraction = Fraction(amount)
    except ZeroDivisionError:
        raise _invalid(asked, "divides by nothing") from None
    if fraction == 0:
        return None
    if fraction > 1:
        raise _invalid(asked, "is more than one GPU; request whole GPUs (2) or a fraction of one (0.5)")
    if fraction == 1:
        return GpuRequest(whole=1)
    milli = int(fraction * 1000)
    if milli < 1:
        raise _invalid(asked, "is less than a thousandth of a GPU, which is the smallest share")
    return GpuRequest(fraction_milli=milli)


def parse_labels(pairs: Iterable[tuple[str, str]], *, field: str = "on") -> tuple[tuple[str, str], ...]:
    """Labels that a node must carry, or carries, sorted. Raises InvalidInput."""
    labels = sorted((name.strip(), value.strip()) for name, value in pairs)
    if len(labels) > MAX_LABELS:
        raise _invalid_label(field, f"has {len(labels)} labels; at most {MAX_LABELS} are allowed")
    for name, value in labels:
        if not _LABEL_NAME.fullmatch(name):
            raise _invalid_label(
                field, f"{name[:70]!r} is not the name of a label; a name has at most 63 letters, digits and . _ / -"
            )
        if not _LABEL_VALUE.fullmatch(value):
            raise _invalid_label(field, f"{name}={value[:40]!r} is not a label; a value has 1 to 128 plain characters")
    return tuple(labels)


def _invalid_label(field: str, why: str) -> InvalidInput:
    return InvalidInput(f"{field} {why}", field=field, code="invalid-label")


INSTANCE_TOLERANCE_MILLI = 10
"""A MIG instance of an eighth has slightly less than an eighth of its GPU's memory: the driver keeps the rest."""


@dataclass(frozen=True, slots=True)
class Part:
    """VRAM in MiB and compute in thousandths that a request takes of a device; `whole` if nothing of it is left."""

    memory_mib: int
    compute_milli: int
    whole: bool = False


def part_of(device: Device, gpu: GpuRequest) -> Part | None:
    """The part that `gpu` takes of this device (of each, for several whole ones) if it is empty; None if it never fits.

    A whole GPU is never a MIG instance. A part of a GPU takes a whole MIG instance that is as large, and of a GPU with
    slots as many slots as it needs: a third of a GPU of 12 GiB and 4 GiB of it take the same.
    """
    memory = device.memory_mib
    if memory <= 0:
        return None
    if device.parent_uuid is not None:
        return _instance(device, gpu)
    if gpu.whole:
        return Part(memory, 1000, whole=True)
    if gpu.vram_mib > memory:
        return None
    if device.slots:
        n = device.slots
        asked = gpu.vram_mib * n * 1000 // memory if gpu.vram_mib else gpu.fraction_milli * n
        # 1/3 comes as 333 thousandths: rounding down must not cost a slot, nor may a difference below a thousandth.
        slots = max(1, -(-asked // 1000))
        return Part(memory * slots // n, 1000 * slots // n)
    return Part(gpu.memory_on(memory), gpu.compute_on(memory))


def _instance(device: Device, gpu: GpuRequest) -> Part | None:
    if gpu.whole:
        return None
    has_milli = device.memory_mib * 1000 // device.parent_memory_mib if device.parent_memory_mib else 1000
    enough = gpu.fraction_milli <= has_milli + INSTANCE_TOLERANCE_MILLI and gpu.vram_mib <= device.memory_mib
    return Part(device.memory_mib, 1000, whole=True) if enough else None
