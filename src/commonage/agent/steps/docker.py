"""Step for Docker: installed from the distribution, with the site's settings merged into its own, and running."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commonage.agent.steps.host import Host, StepFailed, install, packages_for
from commonage.agent.steps.nvidia import has_driver, vram_mib
from commonage.agent.steps.step import CheckResult, JoinContext, Step, blocked, done, needed

SETTINGS = Path("/etc/docker/daemon.json")
PID_FILE = Path("/var/run/docker.pid")
"""Written by the daemon when it starts."""
_DROP_IN = Path("/etc/systemd/system/docker.service.d/commonage.conf")
_DEFAULTS = Path("/etc/default/docker")
# Without asking a registry for an image that is present: 20 s each time if the registry cannot be reached.
_VARIABLE = "DOCKER_SERVICE_PREFER_OFFLINE_IMAGE=1"
_START_TIMEOUT_S = 90.0
OLDEST = (20, 10)


class Docker(Step):
    """Step: the daemon is installed, has the required settings, and answers."""

    name = "docker"

    def check(self, context: JoinContext) -> CheckResult:
        """Check. Existing settings of the owner that differ are not changed: the owner must decide."""
        changes: list[str] = []
        if not context.host.has("dockerd"):
            changes.append(f"install {', '.join(packages_for(context.host, ['docker']))}")
        kept = read_settings(context.host)
        wanted = merge_settings(kept, wanted_settings(context))
        if wanted != kept:
            new = [name for name in wanted if wanted[name] != kept.get(name)]
            changes.append(f"set {', '.join(new)} in {SETTINGS}")
        if not _has_variable(context.host):
            changes.append("let services start from present images without asking the registry")
        version = _version(context.host)
        if not version:
            return needed(*changes, "start Docker, now and at boot")
        if not changes and _is_stale(context.host, kept):
            changes.append("apply settings that are newer than the start of Docker")
        if changes:
            return _restart(context, changes)
        if _numbers(version) < OLDEST:
            return blocked(
                f"Docker {version} is installed: {'.'.join(map(str, OLDEST))} or later is required. Upgrade it"
            )
        return done(f"Docker {version}{_vram_text(wanted)}")

    def apply(self, context: JoinContext) -> None:
        """Write settings before the first start, because the package may start the daemon. Its own files come later."""
        host = context.host
        kept = read_settings(host)
        wanted = merge_settings(kept, wanted_settings(context))
        if wanted != kept:
            host.write(SETTINGS, json.dumps(wanted, indent=2) + "\n")
        if not host.has("dockerd"):
            install(host, packages_for(host, ["docker"]), context.options.mirror)
            if not host.has("docker"):  # a separate package since Debian 13
                install(host, packages_for(host, ["docker-cli"]), context.options.mirror)
        if not _has_variable(host):
            _set_variable(host)
        host.start_at_boot("docker")
        if host.systemd:
            host.run_or_fail("systemctl", "daemon-reload")
        host.service("restart" if _version(host) else "start", "docker")
        if not host.wait(lambda: bool(_version(host)), _START_TIMEOUT_S):
            raise StepFailed(
                f"Docker does not answer after its start: {host.run('docker', 'version').output_tail}. Check its log"
            )


def _restart(context: JoinContext, changes: list[str]) -> CheckResult:
    """The settings need a restart of the daemon, which must not end running containers without consent."""
    running = len(context.host.run_or_fail("docker", "ps", "--quiet").split())
    if not running:
        return needed(*changes, "restart Docker")
    if context.options.force:
        return needed(*changes, f"restart Docker, which ends {running} running containers")
    return blocked(
        f"to {', '.join(changes)}, Docker must be restarted, which ends {running} running containers: drain the node "
        f"(`commonage node drain {context.options.node}`) and wait, or end them with --force"
    )


def _is_stale(host: Host, settings: Mapping[str, Any]) -> bool:
    """Whether the daemon started before its settings were written: then an earlier run was interrupted."""
    try:
        started = Path(settings.get("pidfile") or PID_FILE).stat().st_mtime_ns
    except OSError:
        return False  # cannot be determined
    files = (SETTINGS, _DROP_IN if host.systemd else _DEFAULTS)
    return any(one.exists() and one.stat().st_mtime_ns > started for one in files)


def wanted_settings(context: JoinContext) -> dict[str, Any]:
    """The required content of daemon.json: the site's settings, and those for this node's GPUs."""
    wanted = dict(context.join_config.daemon)
    amount = vram_mib(context)
    if amount:
        wanted["node-generic-resources"] = [f"VRAM={amount}"]
    if has_driver(context):
        wanted["runtimes"] = {"nvidia": {"path": "nvidia-container-runtime", "args": []}}
        wanted["default-runtime"] = "nvidia"
        # With systemd's driver running containers lose their GPU at `systemctl daemon-reload`.
        wanted["exec-opts"] = ["native.cgroupdriver=cgroupfs"]
    return wanted


def merge_settings(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Merge both: lists and tables grow, everything else must agree. Raises StepFailed naming the difference.

    A resource or option in a list with the same NAME=… is replaced: it has the current amount.
    """
    merged = dict(kept)
    for name, value in wanted.items():
        present = merged.get(name)
        if present is None or present == value:
            merged[name] = value
        elif isinstance(present, dict) and isinstance(value, dict):
            merged[name] = merge_settings(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            names = {one.partition("=")[0] for one in value if isinstance(one, str)}
            rest = [one for one in present if not isinstance(one, str) or one.partition("=")[0] not in names]
            merged[name] = present if all(one in present for one in value) else [*rest, *value]
        else:
            raise StepFailed(
                f"{SETTINGS} sets {name} = {json.dumps(present)}, and the site requires {json.dumps(value)}: change or "
                "remove that line"
            )
    return merged


def read_settings(host: Host) -> dict[str, Any]:
    """The content of daemon.json. Raises StepFailed if it cannot be read."""
    text = host.read(SETTINGS)
    if text is None or not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise StepFailed(f"{SETTINGS} is not JSON ({error}), so Docker cannot start: correct it") from None
    if not isinstance(settings, dict):
        raise StepFailed(f"{SETTINGS} is not a JSON object: correct it")
    return settings


def _version(host: Host) -> str:
    """The version of the running daemon; empty if none answers."""
    if not host.has("docker"):
        return ""
    ran = host.run("docker", "version", "--format", "{{.Server.Version}}", timeout_s=10)
    return ran.out.strip() if ran.ok else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.partition("+")[0].split(".")[:2] if word.isdigit())


def _vram_text(settings: Mapping[str, Any]) -> str:
    resources = [one for one in settings.get("node-generic-resources", []) if str(one).startswith("VRAM=")]
    return f", with {resources[0].partition('=')[2]} MiB of VRAM" if resources else ""


def _has_variable(host: Host) -> bool:
    return _VARIABLE in (host.read(_DROP_IN if host.systemd else _DEFAULTS) or "")


def _set_variable(host: Host) -> None:
    if host.systemd:
        host.write(_DROP_IN, f"# Written by Commonage.\n[Service]\nEnvironment={_VARIABLE}\n")
    else:
        kept = host.read(_DEFAULTS) or ""
        host.write(_DEFAULTS, f"{kept.rstrip()}\n\n# Written by Commonage.\nexport {_VARIABLE}\n".lstrip())
