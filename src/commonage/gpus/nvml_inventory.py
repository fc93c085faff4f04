"""What the cards of a machine are, as `Device`s: whole cards, and MIG instances in the place of a card that is split.

Used by `nvml`. A figure that is not given stays empty; what is wrong becomes a fault or a notice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from commonage.domain.fleet import INSTANCE_INDEX, Device
from commonage.gpus.card_faults import CardFaults, Life
from commonage.gpus.environment import MIB
from commonage.gpus.nvml_health import health_of, recovery_of
from commonage.gpus.nvml_library import Card, Library
from commonage.gpus.nvml_places import Links, links_of, numa_of, pci_of, peers_of

_NO_MEMORY = "does not say how much memory it has, so no share of it can be given"
_NO_INSTANCE = (
    "is in MIG mode and has no instance: make some (`commonage node mig`, or `nvidia-smi mig -i {index} -cgi PROFILES "
    "-C`), or switch MIG off (`nvidia-smi -i {index} -mig 0`)"
)
_PROFILE = re.compile(r"MIG (\S+)$")


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: its handle, and its place among those of its card."""

    handle: Any
    uuid: str
    place: int
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What all cards have in common."""

    driver: str
    cuda: str
    boot: str
    places: Mapping[str, str]  # uuids by PCI place
    links: Mapping[str, Links]  # by uuid


def machine_of(library: Library, cards: Sequence[Card], boot: str) -> Machine:
    """Versions and NVLinks. A card that fails in the middle is left out: it is looked at itself, too."""
    places, links = {}, {}
    for card in cards:
        try:
            places[pci_of(card)] = card.uuid
            links[card.uuid] = links_of(card)
        except pynvml.NVMLError:
            continue
    places.pop("", None)
    driver = library.try_to("nvmlSystemGetDriverVersion") or ""
    return Machine(str(driver), cuda_version(library), boot, places, links)


def cuda_version(library: Library) -> str:
    """Like `13.1`; empty where it is not told."""
    number = library.try_to("nvmlSystemGetCudaDriverVersion_v2")
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def life_of(card: Card, driver: str, boot: str) -> Life:
    """What tells the card from itself before a reset.

    Without persistence mode the driver lets go of a card whenever nobody has it open, and may count energy anew then:
    that is no reset, so the count tells nothing.
    """
    lasts = card.ask("nvmlDeviceGetPersistenceMode") == pynvml.NVML_FEATURE_ENABLED
    energy = card.ask("nvmlDeviceGetTotalEnergyConsumption") if lasts else None
    return Life(boot, driver, None if energy is None else int(energy), recovery_of(card))


def devices_of(card: Card, machine: Machine, faults: CardFaults) -> tuple[Device, ...]:
    """The card, or its MIG instances. Raises pynvml.NVMLError if it fails in the middle."""
    device = _card(card, machine, faults)
    if not is_split(card):
        return (device,)
    instances = instances_of(card)
    if not instances:
        return (replace(device, faults=(*device.faults, _NO_INSTANCE.format(index=card.index))),)
    return tuple(_instance(card, device, one, faults) for one in instances)


def _card(card: Card, machine: Machine, faults: CardFaults) -> Device:
    total_mib, _ = memory_mib(card.library, card.handle)
    capability = card.ask("nvmlDeviceGetCudaComputeCapability")
    pci = pci_of(card)
    life = life_of(card, machine.driver, machine.boot)
    health = health_of(card, capability and (capability[0], capability[1]), life.recovery)
    missing = () if total_mib else (_NO_MEMORY,)
    return Device(
        uuid=card.uuid,
        index=card.index,
        model=str(card.ask("nvmlDeviceGetName") or "unnamed card"),
        memory_mib=total_mib or 0,
        faults=(*missing, *faults.faults(card.uuid, card.index, life), *health.faults),
        driver=machine.driver,
        cuda=machine.cuda,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
        pci=pci,
        numa=numa_of(card, pci),
        peers=peers_of(card.uuid, machine.links, machine.places),
        notices=(*faults.notices(card.uuid), *health.notices),
    )


# --- MIG ----------------------------------------------------------------------------------------------------------


def is_split(card: Card) -> bool:
    """True if MIG is on."""
    mode = card.ask("nvmlDeviceGetMigMode")
    return bool(mode and mode[0])


def instances_of(card: Card) -> list[Instance]:
    """Its instances. One that goes while we look is left out. Raises pynvml.NVMLError if the card itself fails."""
    found = []
    for place in range(int(card.ask("nvmlDeviceGetMaxMigDeviceCount") or 0)):
        try:
            handle = card.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
            if handle is None:
                continue
            uuid = card.library.api.nvmlDeviceGetUUID(handle)
            ids = [card.library.ask(f"nvmlDeviceGet{part}InstanceId", handle) for part in ("Gpu", "Compute")]
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # none at this place, or not any more
            raise
        found.append(Instance(handle, uuid, place, *ids))
    return found


def _instance(card: Card, whole: Device, one: Instance, faults: CardFaults) -> Device:
    mib, _ = memory_mib(card.library, one.handle)
    missing = () if mib else (_NO_MEMORY,)
    return replace(
        whole,
        uuid=one.uuid,
        index=INSTANCE_INDEX * (card.index + 1) + one.place,
        memory_mib=mib or 0,
        faults=(*missing, *whole.faults),
        mig_profile=_profile(card.library, one.handle),
        parent_uuid=whole.uuid,
        parent_memory_mib=whole.memory_mib,
        peers=(),  # instances of different cards do not reach each other by NVLink
        notices=(*faults.notices(one.uuid), *whole.notices),
    )


def _profile(library: Library, handle: Any) -> str:
    """The name of its profile, like `1g.10gb`: a part of the instance's name, or made of what it has."""
    named = _PROFILE.search(str(library.ask("nvmlDeviceGetName", handle) or ""))
    if named:
        return named[1]
    has = library.ask("nvmlDeviceGetAttributes_v2", handle)
    return "" if has is None else f"{has.gpuInstanceSliceCount}g.{round(has.memorySizeMB / 1024)}gb"


def memory_mib(library: Library, handle: Any) -> tuple[int | None, int | None]:
    """What workloads can have of the card or instance and what is used of that, in MiB.

    The driver keeps a part for itself, which the newer call tells apart: it can be given to nobody, and
    frameworks do not count it as the card's memory either.
    """
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    if memory is not None:
        return (memory.total - memory.reserved) // MIB, memory.used // MIB
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    return (memory.total // MIB, memory.used // MIB) if memory is not None else (None, None)
