"""Steps for folders: memory-backed scratch, and the folder that all nodes of the site see under the same path."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from commonage.agent.steps.host import Host, StepFailed, install, packages_for
from commonage.agent.steps.step import CheckResult, JoinContext, Step, blocked, done, needed, not_applicable
from commonage.join.config import MARK_FILE

SCRATCH = Path("/scratch")
FSTAB = Path("/etc/fstab")
FSTAB_MARK = "# commonage"
_GIB = 1024**3


class Scratch(Step):
    """Step: a tmpfs at /scratch: fast, and empty after a reboot."""

    name = "scratch"

    def check(self, context: JoinContext) -> CheckResult:
        """Check. An existing mount or a folder with files belongs to the owner and is not changed."""
        if context.options.scratch == "off":
            return not_applicable("scratch space is switched off")
        kind = context.host.mounted(SCRATCH)
        if kind is not None:
            usage = os.statvfs(SCRATCH)
            return done(f"{kind} of {usage.f_blocks * usage.f_frsize / _GIB:.1f} GiB at {SCRATCH}")
        if SCRATCH.is_dir() and any(SCRATCH.iterdir()):
            return done(f"{SCRATCH} is a folder with files, and is kept")
        return needed(f"mount a tmpfs of {context.options.scratch} of the memory at {SCRATCH}, now and at boot")

    def apply(self, context: JoinContext) -> None:
        SCRATCH.mkdir(exist_ok=True)
        options = f"size={context.options.scratch},mode=1777,nosuid,nodev"
        add_fstab_line(context.host, SCRATCH, f"tmpfs {SCRATCH} tmpfs {options} 0 0")
        context.host.run_or_fail("mount", str(SCRATCH))


class Share(Step):
    """Step: the shared folder, for homes, output of workloads, and their messages to the control plane."""

    name = "share"

    def check(self, context: JoinContext) -> CheckResult:
        if marked := check_mark(context):
            return marked
        folder = Path(context.join_config.shared_dir)
        if context.host.mounted(folder) is not None:
            return blocked(f"the file system mounted at {folder} is not the site's: it lacks {MARK_FILE}")
        if not context.options.share:
            return blocked(
                f"{folder} does not exist, and all nodes of the site must see it: mount it, or name its source with "
                "--share SERVER:/FOLDER"
            )
        return needed(f"mount {context.options.share} at {folder}, now and at boot")

    def apply(self, context: JoinContext) -> None:
        folder = Path(context.join_config.shared_dir)
        line = fstab_line(context.options.share, folder)
        kind = line.split()[2]
        if kind.startswith("nfs") and not context.host.has("mount.nfs"):
            install(context.host, packages_for(context.host, ["nfs"]), context.options.mirror)
        folder.mkdir(parents=True, exist_ok=True)
        add_fstab_line(context.host, folder, line)
        mounted = context.host.run("mount", str(folder), timeout_s=120)
        if not mounted.ok:
            remove_fstab_lines(context.host, folder)
            raise StepFailed(f"{context.options.share} cannot be mounted at {folder}: {mounted.output_tail}")


def check_mark(context: JoinContext) -> CheckResult | None:
    """Whether the shared folder is the site's, by the mark in it; None if it has none."""
    folder = context.join_config.shared_dir
    mark = context.host.read(Path(folder) / MARK_FILE)
    if mark is None:
        return None
    if mark.strip() == context.join_config.mark:
        return done(f"{folder} is the site's")
    return blocked(f"{folder} belongs to another site (see its {MARK_FILE}): mount the folder of this site there")


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


def add_fstab_line(host: Host, folder: Path, line: str) -> None:
    """Put this line into fstab, marked as Commonage's; replaces an earlier one for the folder. Raises StepFailed."""
    remove_fstab_lines(host, folder)
    kept = host.read(FSTAB) or ""
    if any(words[1:2] == [str(folder)] for words in map(str.split, kept.splitlines()) if not words[:1] == ["#"]):
        raise StepFailed(
            f"{FSTAB} has a line for {folder}, but it is not mounted: run `mount {folder}`, or correct the line"
        )
    host.write(FSTAB, f"{kept.rstrip()}\n{line} {FSTAB_MARK}\n".lstrip())


def managed_mounts(host: Host) -> list[str]:
    """The folders with lines of Commonage in fstab."""
    return [folder for line in (host.read(FSTAB) or "").splitlines() if (folder := managed_mount(line))]


def remove_fstab_lines(host: Host, folder: Path) -> None:
    """Remove Commonage's lines for this folder from fstab."""
    lines = (host.read(FSTAB) or "").splitlines()
    kept = [line for line in lines if managed_mount(line) != str(folder)]
    if kept != lines:
        host.write(FSTAB, "".join(f"{line}\n" for line in kept))


def managed_mount(line: str) -> str:
    """The folder of a line that Commonage wrote; empty for all others."""
    words = line.split()
    return words[1] if line.endswith(FSTAB_MARK) and len(words) > 1 else ""
