"""The machines of the Swarm, as the Swarm and their agents tell of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from commonage.domain.fleet import Device, NodeReport
from commonage.engines.dockerd.connection import Json
from commonage.engines.swarm.translate import VRAM
from commonage.ports.agents import Heard

_MIB = 1024 * 1024
_UNDECLARED = (
    "cannot be reserved, as Docker there declares {declared} VRAM for cards of {there} MiB: run `commonage node join` "
    "for that machine again"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """One member of the Swarm. `vram_mib` is what it declares, None if nothing.

    `state` is Swarm's own word; `why_down` is empty until it is given up. After a manager was away, machines are
    `unknown` for a while, which is no reason to give up what they run.
    """

    id: str
    name: str
    address: str
    cpus_milli: int
    memory_mib: int
    vram_mib: int | None
    arch: str
    labels: tuple[tuple[str, str], ...]
    state: str = "ready"
    why_down: str = ""
    availability: str = "active"

    @property
    def is_down(self) -> bool:
        """True once the Swarm has given it up."""
        return bool(self.why_down)


@dataclass(frozen=True, slots=True)
class Wait:
    """Why what ran on a machine does not begin elsewhere yet. `for_long`: until the machine or an admin is heard of."""

    why: str
    for_long: bool = False


def machines_of(found: Iterable[Json]) -> dict[str, Machine]:
    """Machines by name. Of several with one name, which come of joining anew, the one that is there. One that is just
    joining has none yet.
    """
    machines: dict[str, Machine] = {}
    named = [node for node in found if (node.get("Description") or {}).get("Hostname")]
    for one in sorted((_machine(node) for node in named), key=lambda one: (one.is_down, one.state != "ready", one.id)):
        if one.name not in machines:
            machines[one.name] = one
        elif not one.is_down:
            name = f"{one.name}-{one.id[:6]}"
            machines[name] = replace(one, name=name)
    return machines


def _machine(node: Json) -> Machine:
    description, status, spec = node["Description"], node["Status"], node["Spec"]
    resources = description.get("Resources") or {}
    down = (status.get("Message") or "Docker Swarm says that it is down") if status["State"] == "down" else ""
    return Machine(
        id=node["ID"],
        name=description["Hostname"],
        address=_address(node),
        cpus_milli=int(resources.get("NanoCPUs", 0)) // 1_000_000,
        memory_mib=int(resources.get("MemoryBytes", 0)) // _MIB,
        vram_mib=_vram(resources),
        arch=(description.get("Platform") or {}).get("Architecture", ""),
        labels=tuple(sorted((spec.get("Labels") or {}).items())),
        state=status["State"],
        why_down=down,
        availability=spec.get("Availability", "active"),
    )


def _address(node: Json) -> str:
    address = str(node["Status"].get("Addr", ""))
    if address in ("", "0.0.0.0", "127.0.0.1"):
        manager = str((node.get("ManagerStatus") or {}).get("Addr", ""))
        return manager.rpartition(":")[0] or address
    return address


def _vram(resources: Json) -> int | None:
    for one in resources.get("GenericResources") or ():
        discrete = one.get("DiscreteResourceSpec") or {}
        if discrete.get("Kind") == VRAM:
            return int(discrete["Value"])
    return None


def report_of(machine: Machine, heard: Heard | None, wait: Wait | None = None) -> NodeReport:
    """What is to be said of a machine. Of one without an agent only cores and memory are known, and no card."""
    faults: list[str] = []
    if machine.is_down:
        faults.append(f"Docker Swarm does not reach it: {machine.why_down}")
        faults += [wait.why] if wait is not None else []
    elif machine.state != "ready":
        faults.append(f"Docker Swarm waits for it (state {machine.state})")
    elif machine.availability != "active":
        faults.append(f"it takes no work in Docker Swarm (availability {machine.availability})")
    labels: Mapping[str, str] = {"arch": machine.arch, "os": "linux", **dict(machine.labels)}
    report = NodeReport(machine.name, machine.cpus_milli, machine.memory_mib)
    if heard is not None:
        told = heard.report
        report = replace(
            told,
            name=machine.name,
            cpus_milli=told.cpus_milli or machine.cpus_milli,
            memory_mib=told.memory_mib or machine.memory_mib,
            devices=tuple(_reservable(told.devices, machine.vram_mib or 0)),
        )
        labels = {**labels, **dict(told.labels)}
        faults += told.faults
        if heard.engine_fault:
            faults.append(heard.engine_fault)
        if not heard.connected and not machine.is_down:
            faults.append("its agent does not answer")
    faults = list(dict.fromkeys(faults))
    gone = machine.is_down and (wait is None or wait.for_long)
    undecided = wait.why if gone and wait is not None else ""
    labelled = tuple(sorted(labels.items()))
    return replace(report, labels=labelled, faults=tuple(faults), gone=gone, undecided=undecided)


def _reservable(cards: tuple[Device, ...], declared_mib: int) -> Iterator[Device]:
    """The cards; with a fault those for which there is no VRAM left to reserve: Swarm would start nothing on them."""
    there = sum(card.memory_mib for card in cards if not card.simulated)
    why = _UNDECLARED.format(declared=f"{declared_mib} MiB of" if declared_mib else "no", there=there)
    left = declared_mib
    for card in cards:
        left -= 0 if card.simulated else card.memory_mib
        yield card if card.simulated or left >= 0 else replace(card, faults=(*card.faults, why))


def notes_on(machines: Iterable[str], heard: Mapping[str, Heard]) -> tuple[str, ...]:
    """What an admin should know of these machines, in sentences."""
    without = sorted(set(machines) - heard.keys())
    notes = [f"{name}: {notice}." for name, one in sorted(heard.items()) for notice in one.notices]
    if without:
        notes.append(
            f"{', '.join(without)} without an agent: containers there reach the machine, the site and other tenants' "
            "ports, no cards are known, and nothing is measured; `commonage node join` gives a machine its agent."
        )
    return tuple(notes)
