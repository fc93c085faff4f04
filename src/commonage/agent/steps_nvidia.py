"""NVIDIA's driver and container toolkit, where a card is. Shown first: who joins says whether to install them."""

from __future__ import annotations

from pathlib import Path

from commonage.agent.steps import Case, Look, bad, done, needed, not_here
from commonage.agent.steps_host import Host, StepFailed
from commonage.agent.steps_packages import install, names_of
from commonage.gpus.simulated import parse_simulated

PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAYS = "0x10de", ("0x0300", "0x0302")


class Nvidia:
    """Driver and toolkit."""

    name = "nvidia"

    def look(self, case: Case) -> Look:
        """Nothing where no card is, or where it is to be left alone."""
        cards = len(cards_on_the_bus(case.host))
        if not cards:
            return not_here("no NVIDIA card in this machine")
        if case.options.nvidia == "skip":
            return not_here(f"{_many(cards)} left alone, as asked: no driver is installed")
        missing = _missing(case)
        if not missing:
            return done(f"{_many(cards)}, driver {_driver_version(case.host)}, container toolkit")
        packages = names_of(case.host, missing)
        if case.options.nvidia == "ask":
            return bad(
                f"{_many(cards)} without {' and '.join(missing)}: `--nvidia install` installs {', '.join(packages)} "
                f"(from {case.options.mirror or 'the package sources of this machine'}), `--nvidia skip` joins without "
                "the card"
            )
        return needed(f"install {', '.join(packages)}", *(["load the driver"] if "nvidia-driver" in missing else []))

    def apply(self, case: Case) -> None:
        """Install what is missing. A new driver may need a restart of the machine."""
        host, missing = case.host, _missing(case)
        packages = names_of(host, missing)
        if "nvidia-driver" in missing:
            packages = [*_headers(host), *packages]
        install(host, packages, case.options.mirror)
        if "nvidia-driver" in missing and not _driver_version(host):
            loaded = host.run("modprobe", "nvidia", timeout_s=120)
            if not loaded.ok or not _driver_version(host):
                raise StepFailed(
                    f"the driver is installed but does not load ({loaded.said}): restart the machine, then run the "
                    "same command again"
                )


def cards_on_the_bus(host: Host) -> list[str]:
    """The addresses of NVIDIA's cards, also without a driver."""
    if not PCI.is_dir():
        return []
    found = []
    for device in sorted(PCI.iterdir()):
        vendor, kind = (host.read(device / "vendor") or "").strip(), (host.read(device / "class") or "").strip()
        if vendor == _NVIDIA and kind.startswith(_DISPLAYS):
            found.append(device.name)
    return found


def has_driver(case: Case) -> bool:
    """Whether containers are to be given NVIDIA's cards here."""
    host = case.host
    return bool(cards_on_the_bus(host)) and case.options.nvidia != "skip" and bool(_driver_version(host))


def vram_mib(case: Case) -> int:
    """The memory of all cards together, MiB, as it stands in the Swarm; 0 where there are none."""
    if case.options.vram_mib is not None:
        return case.options.vram_mib
    if case.options.gpus.startswith("simulated"):
        return sum(some.count * some.memory_mib for some in parse_simulated(case.options.gpus))
    if case.options.gpus == "none":
        return 0
    if not has_driver(case):
        return 0
    said = case.host.must("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return sum(int(line) for line in said.split() if line.isdigit())


def _missing(case: Case) -> list[str]:
    missing = [] if _driver_version(case.host) else [case.options.driver or "nvidia-driver"]
    return missing if case.host.has("nvidia-ctk") else [*missing, "nvidia-toolkit"]


def _driver_version(host: Host) -> str:
    ran = host.run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", timeout_s=30)
    return ran.out.split()[0] if ran.ok and ran.out.split() else ""


def _headers(host: Host) -> list[str]:
    """The driver is built for the kernel that runs."""
    return [f"linux-headers-{host.must('uname', '-r').strip()}"] if host.has("apt-get") else []


def _many(cards: int) -> str:
    return "an NVIDIA card" if cards == 1 else f"{cards} NVIDIA cards"
