"""Installs distribution packages with apt-get, dnf or zypper; from a mirror only if nothing else can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from commonage.agent.steps.host import CommandResult, Host, StepFailed

_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "docker": {"apt-get": ("docker.io", "iptables"), "dnf": ("moby-engine",), "zypper": ("docker",)},
    "openssl": {"apt-get": ("openssl",), "dnf": ("openssl",), "zypper": ("openssl",)},
    "iptables": {"apt-get": ("iptables",), "dnf": ("iptables-nft",), "zypper": ("iptables",)},
    "nfs": {"apt-get": ("nfs-common",), "dnf": ("nfs-utils",), "zypper": ("nfs-client",)},
    "nvidia-toolkit": {
        "apt-get": ("nvidia-container-toolkit",),
        "dnf": ("nvidia-container-toolkit",),
        "zypper": ("nvidia-container-toolkit",),
    },
    "nvidia-cuda": {
        "apt-get": ("libcuda1",),
        "dnf": ("nvidia-driver-cuda-libs",),
        "zypper": ("nvidia-compute-G06",),
    },
    "nvidia-driver": {
        "apt-get": ("nvidia-driver", "nvidia-smi", "libcuda1"),
        "dnf": ("nvidia-driver", "nvidia-driver-cuda"),
        "zypper": ("nvidia-driver-G06-kmp-default", "nvidia-compute-utils-G06"),
    },
}
"""The package names of a tool for each package manager."""

_LIST = Path("/run/commonage-mirror.list")
_TIMEOUT_S = 1800.0
# Keep existing settings files: nobody can answer a question.
_KEEP_CONFFILES = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")


def package_manager(host: Host) -> str:
    for name in ("apt-get", "dnf", "zypper"):
        if host.has(name):
            return name
    raise StepFailed("this machine has no package manager that Commonage knows (apt-get, dnf, zypper)")


def packages_for(host: Host, things: Sequence[str]) -> list[str]:
    """The packages for these tools here. A name that is not in the table is a package's own name."""
    manager = package_manager(host)
    return [name for thing in things for name in _NAMES.get(thing, {}).get(manager, (thing,))]


def install(host: Host, packages: Sequence[str], mirror: str = "") -> None:
    """Install these packages; only from `mirror` if one is given. Raises StepFailed with the manager's message.

    `mirror` is a line for sources.list, or the address of a flat repository; for dnf and zypper a repository's address.
    """
    manager = package_manager(host)
    if manager == "apt-get":
        return _install_with_apt(host, packages, mirror)
    if manager == "dnf":
        source = ["--repofrompath", f"commonage-mirror,{mirror}", "--repo", "commonage-mirror"] if mirror else []
        command = ["dnf", "install", "-y", "-q", *source, *packages]
    else:
        source = ["--plus-repo", mirror] if mirror else []
        command = ["zypper", "--non-interactive", "--quiet", *source, "install", *packages]
    _run(host, command, packages)


def _install_with_apt(host: Host, packages: Sequence[str], mirror: str) -> None:
    options: list[str] = []
    if mirror:
        host.write(_LIST, apt_line(mirror) + "\n")
        options = [
            "-o", f"Dir::Etc::sourcelist={_LIST}", "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0",
        ]  # fmt: skip
    try:
        _run(host, ["apt-get", "update", "-qq", *options], packages)
        _run(
            host,
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *_KEEP_CONFFILES, *options, *packages],
            packages,
        )
    finally:
        _LIST.unlink(missing_ok=True)


def apt_line(mirror: str) -> str:
    """A mirror as a line of sources.list. Only a local folder needs no signature."""
    if mirror.startswith("deb "):
        return mirror
    return f"deb [trusted=yes] {mirror} ./" if mirror.startswith("file:") else f"deb {mirror} ./"


def _run(host: Host, command: Sequence[str], packages: Sequence[str]) -> None:
    ran = host.run(*command, timeout_s=_TIMEOUT_S, environment={"DEBIAN_FRONTEND": "noninteractive"})
    if not ran.ok:
        output = CommandResult(ran.code, "", f"{ran.out}\n{ran.err}").output_tail  # the error may be in either stream
        raise StepFailed(
            f"{', '.join(packages)} could not be installed: {output}; install it by hand, or name a source that has it "
            "with --mirror"
        )
