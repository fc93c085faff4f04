"""Step for NVIDIA's driver and container toolkit, on nodes with a GPU. Shown first: the owner decides on installing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from commonage.agent.steps.host import Host, StepFailed, install, packages_for
from commonage.agent.steps.step import CheckResult, JoinContext, Step, blocked, done, needed, not_applicable
from commonage.gpu.simulated import parse_simulated

PCI = Path("/sys/bus/pci/devices")
_DRIVER = "nvidia-driver"
# 6.1.0-37-amd64, 6.12.43+deb13-cloud-amd64, 6.8.0-45-generic; a custom kernel has no such package.
_FLAVOUR = re.compile(
    r"\d[\d.]*(?:\+deb\d+)?(?:-\d+)?-((?:cloud-|rt-)?(?:amd64|arm64)|generic|lowlatency|aws|azure|gcp|oracle)", re.ASCII
)
_NVIDIA, _DISPLAYS = "0x10de", ("0x0300", "0x0302")


class Nvidia(Step):
    name = "nvidia"

    def check(self, context: JoinContext) -> CheckResult:
        """Check. Not needed without a GPU, or if it is to be skipped."""
        devices = len(nvidia_gpus(context.host))
        if not devices:
            return not_applicable("no NVIDIA GPU in this machine")
        if context.options.nvidia == "skip":
            return not_applicable(f"{_gpu_count(devices)} skipped: no driver is installed")
        missing = _missing_parts(context)
        if not missing:
            return done(f"{_gpu_count(devices)}, driver {_driver_version(context.host)}, container toolkit")
        packages = _packages(context, missing)
        if context.options.nvidia == "ask":
            return blocked(
                f"{_gpu_count(devices)} without {' and '.join(missing.values())}: `--nvidia install` installs "
                f"{', '.join(packages)} (from {context.options.mirror or 'the package sources of this machine'}), "
                "`--nvidia skip` joins without the GPU"
            )
        return needed(f"install {', '.join(packages)}", *(["load the driver"] if _DRIVER in missing else []))

    def apply(self, context: JoinContext) -> None:
        """Install what is missing. A new driver may need a reboot of the node."""
        host, missing = context.host, _missing_parts(context)
        try:
            install(host, _packages(context, missing), context.options.mirror)
        except StepFailed as error:
            raise StepFailed(f"{error}{_package_advice(context, str(error))}") from error
        if _DRIVER in missing and not _driver_version(host):
            _load(host)


def nvidia_gpus(host: Host) -> list[str]:
    """PCI addresses of NVIDIA's GPUs, found also without a driver."""
    if not PCI.is_dir():
        return []
    addresses = []
    for device in sorted(PCI.iterdir()):
        vendor, kind = (host.read(device / "vendor") or "").strip(), (host.read(device / "class") or "").strip()
        if vendor == _NVIDIA and kind.startswith(_DISPLAYS):
            addresses.append(device.name)
    return addresses


def has_driver(context: JoinContext) -> bool:
    host = context.host
    return bool(nvidia_gpus(host)) and context.options.nvidia != "skip" and bool(_driver_version(host))


def vram_mib(context: JoinContext) -> int:
    """The memory of all GPUs together in MiB, as published in the Swarm; 0 if there are none."""
    if context.options.vram_mib is not None:
        return context.options.vram_mib
    if context.options.gpus.startswith("simulated"):
        return sum(some.count * some.memory_mib for some in parse_simulated(context.options.gpus))
    if context.options.gpus == "none":
        return 0
    if not has_driver(context):
        return 0
    output = context.host.run_or_fail("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return sum(int(line) for line in output.split() if line.isdigit())


def _load(host: Host) -> None:
    """Load the kernel module. Raises StepFailed with what to do."""
    loaded = host.run("modprobe", "nvidia", timeout_s=120)
    if loaded.ok and _driver_version(host):
        return
    if "not found" in loaded.output_tail:
        built = " ".join(host.run("dkms", "status").out.split())
        raise StepFailed(
            f"the driver is not built for the running kernel ({built or loaded.output_tail}): boot the kernel whose "
            "headers are installed, or install the headers of this one, then run the same command again"
        )
    raise StepFailed(
        f"the driver is installed but does not load ({loaded.output_tail}): restart the node, then run the same "
        "command again"
    )


def _missing_parts(context: JoinContext) -> dict[str, str]:
    """The missing parts: names as in `packages`, each with a description for people."""
    host = context.host
    missing = {}
    if not _driver_version(host):
        missing[_DRIVER] = "a driver"
    elif not _has_cuda(host):
        # Without recommended packages Debian's driver comes without this, and containers would have GPUs but no CUDA.
        missing["nvidia-cuda"] = "the driver's libcuda.so.1"
    if not host.has("nvidia-ctk"):
        missing["nvidia-toolkit"] = "a container toolkit"
    return missing


def _packages(context: JoinContext, missing: Mapping[str, str]) -> list[str]:
    """All packages to install, as shown before."""
    things = [context.options.driver or thing if thing == _DRIVER else thing for thing in missing]
    return [*(_headers(context.host) if _DRIVER in missing else []), *packages_for(context.host, things)]


def _package_advice(context: JoinContext, error: str) -> str:
    """Advice for a package that no repository has: Debian has the driver in a separate section, and no toolkit."""
    if context.options.mirror or not re.search(r"Unable to locate|no installation candidate", error):
        return ""
    return (
        ". Debian's driver is in its components contrib, non-free and non-free-firmware, which its package sources "
        "must name; the container toolkit is in NVIDIA's own"
    )


def _has_cuda(host: Host) -> bool:
    """Whether programs find the driver's library; true if that cannot be determined."""
    ran = host.run("ldconfig", "-p", timeout_s=30)
    return not ran.ok or "libcuda.so.1" in ran.out


def _driver_version(host: Host) -> str:
    ran = host.run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", timeout_s=30)
    return ran.out.split()[0] if ran.ok and ran.out.split() else ""


def _headers(host: Host) -> list[str]:
    """The kernel headers for which the driver is built: by the package that also follows later kernels."""
    if not host.has("apt-get"):
        return []
    kernel = host.run_or_fail("uname", "-r").strip()
    flavour = _FLAVOUR.fullmatch(kernel)
    return [f"linux-headers-{kernel}", *([f"linux-headers-{flavour[1]}"] if flavour else [])]


def _gpu_count(devices: int) -> str:
    return "an NVIDIA GPU" if devices == 1 else f"{devices} NVIDIA GPUs"
