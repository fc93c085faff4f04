"""Splits a GPU into MIG instances, or makes it whole again: plans the commands, and runs them.

It uses `nvidia-smi`, which takes profiles by name, creates compute instances along with GPU instances, and is what an
admin would use; so the commands shown are the commands run. Called by `commonage node mig`, which ensures that no
workload runs. Source: NVIDIA, "Multi-Instance GPU User Guide".
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commonage.domain.errors import Conflict, InvalidInput
from commonage.domain.nodes import INSTANCE_INDEX, Device
from commonage.domain.reasons.devices import MigWithoutInstances

OFF = "off"
_PROFILE = re.compile(r"\d{1,2}g\.\d{1,4}gb(?:\+[a-z0-9.]+)*|\d{1,3}", re.ASCII)
_WITHIN_S = 120.0
_TAIL = 500


@dataclass(frozen=True, slots=True)
class Gpu:
    """The present split of a GPU: the uuids under which it is allocated, its instances' profiles, and MIG mode."""

    index: int
    model: str
    uuids: tuple[str, ...]
    profiles: tuple[str, ...]
    is_split: bool


def gpu_of(devices: Sequence[Device], name: str) -> Gpu:
    """The GPU with this index or uuid (its own or an instance's).

    Raises InvalidInput, which lists the existing ones.
    """
    real = [device for device in devices if not device.simulated]
    index = next((_gpu_index(device) for device in real if name in (device.uuid, device.parent_uuid)), None)
    if index is None and name.isdigit():
        index = int(name)
    mine = [device for device in real if _gpu_index(device) == index]
    if not mine:
        there = ", ".join(f"{_gpu_index(device)} ({device.model})" for device in real) or "no real GPU"
        raise InvalidInput(f"there is no GPU {name[:60]!r} on this machine; there is: {there}", field="gpu")
    instances = [device for device in mine if device.parent_uuid is not None]
    uuids = dict.fromkeys(uuid for device in mine for uuid in (device.uuid, device.parent_uuid) if uuid)
    is_split = bool(instances) or any(
        isinstance(fault, MigWithoutInstances) for device in mine for fault in device.faults
    )
    return Gpu(_gpu_index(mine[0]), mine[0].model, tuple(uuids), tuple(one.mig_profile for one in instances), is_split)


def _gpu_index(device: Device) -> int:
    return device.index if device.parent_uuid is None else device.index // INSTANCE_INDEX - 1


def parse_profiles(text: str) -> tuple[str, ...]:
    """Parse `1g.10gb,2g.20gb`; empty for `off`. Raises InvalidInput that names the wrong part."""
    if text.strip().lower() == OFF:
        return ()
    parts = tuple(part.strip().lower() for part in text.split(","))
    for part in parts:
        if not _PROFILE.fullmatch(part):
            raise InvalidInput(
                f"{part[:60]!r} is no MIG profile; write them like 1g.10gb,2g.20gb, as `nvidia-smi mig -lgip` lists "
                "them, or off",
                field="profiles",
            )
    return parts


def plan(gpu: Gpu, profiles: Sequence[str]) -> list[tuple[str, ...]]:
    """The commands that split the GPU as requested, in order; none if it is split so already."""
    if tuple(sorted(gpu.profiles)) == tuple(sorted(profiles)) and gpu.is_split is bool(profiles):
        return []
    at = ("-i", str(gpu.index))
    commands: list[tuple[str, ...]] = []
    if gpu.profiles:
        commands += [("nvidia-smi", "mig", *at, "-dci"), ("nvidia-smi", "mig", *at, "-dgi")]
    if not profiles:
        return [*commands, ("nvidia-smi", *at, "-mig", "0")]
    if not gpu.is_split:
        commands.append(("nvidia-smi", *at, "-mig", "1"))
    return [*commands, ("nvidia-smi", "mig", *at, "-cgi", ",".join(profiles), "-C")]


def carry_out(commands: Iterable[Sequence[str]]) -> None:
    """Run them; raises Conflict at the first that fails, with its output. Earlier commands are not undone."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Conflict("nvidia-smi is not on PATH: it comes with the NVIDIA driver")
    for command in commands:
        try:
            ended = subprocess.run(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Conflict(f"`{' '.join(command)}` failed: {error}") from error
        said = ended.stdout.decode("utf-8", "replace").strip()[-_TAIL:]
        if ended.returncode != 0:
            raise Conflict(f"`{' '.join(command)}` failed: {said or f'exit code {ended.returncode}'}")
        if "pending" in said.lower():  # exit code 0, although the mode changes only with the next reset
            raise Conflict(f"`{' '.join(command)}` takes effect after a reset of the GPU or a reboot: {said}")
