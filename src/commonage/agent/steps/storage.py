"""Steps for folders: memory-backed scratch, and the folder that all nodes of the site see under the same path."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.packages import install, names_of
from commonage.agent.steps.step import Case, Look, bad, done, needed, not_here
from commonage.join.config import MARK_FILE

SCRATCH = Path("/scratch")
FSTAB = Path("/etc/fstab")
OURS = "# commonage"
_GIB = 1024**3


class Scratch:
    """Step: a tmpfs at /scratch: fast, and empty after a reboot."""

    name = "scratch"

    def look(self, case: Case) -> Look:
        """Check. An existing mount or a folder with files belongs to the owner and is not changed."""
        if case.options.scratch == "off":
            return not_here("no scratch space, as asked")
        kind = case.host.mounted(SCRATCH)
        if kind is not None:
            usage = os.statvfs(SCRATCH)
            return done(f"{kind} of {usage.f_blocks * usage.f_frsize / _GIB:.1f} GiB at {SCRATCH}")
        if SCRATCH.is_dir() and any(SCRATCH.iterdir()):
            return done(f"{SCRATCH} is a folder of this machine already, and stays")
        return needed(f"mount a tmpfs of {case.options.scratch} of the memory at {SCRATCH}, now and with the node")

    def apply(self, case: Case) -> None:
        """Add a line to fstab, and mount."""
        SCRATCH.mkdir(exist_ok=True)
        options = f"size={case.options.scratch},mode=1777,nosuid,nodev"
        put_line(case.host, SCRATCH, f"tmpfs {SCRATCH} tmpfs {options} 0 0")
        case.host.must("mount", str(SCRATCH))


class Share:
    """Step: the shared folder, for homes, output of workloads, and their messages to the control plane."""

    name = "share"

    def look(self, case: Case) -> Look:
        """Check by the mark in the folder, which identifies the site."""
        folder = Path(case.join_config.shared_dir)
        mark = case.host.read(folder / MARK_FILE)
        if mark is not None and mark.strip() == case.join_config.mark:
            return done(f"{folder} is the site's")
        if mark is not None:
            return bad(f"{folder} is another site's folder (its {MARK_FILE} says so); mount this site's there")
        if case.host.mounted(folder) is not None:
            return bad(f"what is mounted at {folder} is not the site's folder: it lacks {MARK_FILE}")
        if not case.options.share:
            return bad(
                f"{folder} is not here, and all nodes of the site must see it: mount it, or say where it is with "
                "--share SERVER:/FOLDER"
            )
        return needed(f"mount {case.options.share} at {folder}, now and with the node")

    def apply(self, case: Case) -> None:
        """Add a line to fstab, and mount."""
        folder = Path(case.join_config.shared_dir)
        line = fstab_line(case.options.share, folder)
        kind = line.split()[2]
        if kind.startswith("nfs") and not case.host.has("mount.nfs"):
            install(case.host, names_of(case.host, ["nfs"]), case.options.mirror)
        folder.mkdir(parents=True, exist_ok=True)
        put_line(case.host, folder, line)
        mounted = case.host.run("mount", str(folder), timeout_s=120)
        if not mounted.ok:
            remove_lines(case.host, folder)
            raise StepFailed(f"{case.options.share} cannot be mounted at {folder}: {mounted.said}")


def fstab_line(share: str, folder: Path) -> str:
    """The fstab line: `SERVER:/FOLDER` is NFS; `TYPE SOURCE [OPTIONS]` is anything else. Raises StepFailed."""
    words = shlex.split(share)
    if len(words) == 1 and ":" in words[0]:
        return f"{words[0]} {folder} nfs _netdev,hard,noatime,nodev,nosuid 0 0"
    if len(words) == 1 and words[0].startswith("/"):
        return f"{words[0]} {folder} none bind 0 0"
    if len(words) in {2, 3}:
        return f"{words[1]} {folder} {words[0]} {words[2] if len(words) == 3 else 'defaults,_netdev'} 0 0"
    raise StepFailed(f"--share takes SERVER:/FOLDER, or 'TYPE SOURCE OPTIONS' as fstab has them, not {share!r}")


def put_line(host: Host, folder: Path, line: str) -> None:
    """Put this line into fstab, marked as Commonage's; replaces an earlier one for the folder. Raises StepFailed."""
    remove_lines(host, folder)
    kept = host.read(FSTAB) or ""
    if any(words[1:2] == [str(folder)] for words in map(str.split, kept.splitlines()) if not words[:1] == ["#"]):
        raise StepFailed(
            f"{FSTAB} has a line for {folder} already, but it is not mounted: `mount {folder}`, or mend it"
        )
    host.write(FSTAB, f"{kept.rstrip()}\n{line} {OURS}\n".lstrip())


def our_folders(host: Host) -> list[str]:
    """The folders with lines of Commonage in fstab."""
    return [folder for line in (host.read(FSTAB) or "").splitlines() if (folder := _of_ours(line))]


def remove_lines(host: Host, folder: Path) -> None:
    """Remove Commonage's lines for this folder from fstab."""
    lines = (host.read(FSTAB) or "").splitlines()
    kept = [line for line in lines if _of_ours(line) != str(folder)]
    if kept != lines:
        host.write(FSTAB, "".join(f"{line}\n" for line in kept))


def _of_ours(line: str) -> str:
    """The folder of a line that Commonage wrote; empty for all others."""
    words = line.split()
    return words[1] if line.endswith(OURS) and len(words) > 1 else ""
