"""Steps for the agent's program and settings, its service (systemd, or a loop of its own), and its registration."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import commonage
from commonage.agent.config import AUTHORITY, CERTIFICATE, KEY, REQUEST, SETTINGS, STATE, AgentConfig, config_text
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.step import CheckResult, JoinContext, Step, blocked, done, needed
from commonage.agent.steps.swarm import swarm_node

PROGRAMS = Path("/usr/local/lib/commonage")
CURRENT = PROGRAMS / "agent"
COMMAND = Path("/usr/local/sbin/commonage-agent")
SERVICE = "commonage-agent"
UNIT = Path(f"/etc/systemd/system/{SERVICE}.service")
SCRIPT = Path(f"/etc/init.d/{SERVICE}")
_REGISTER_TIMEOUT_S = 60.0


class Agent(Step):
    """Step: the agent's program and settings, and that it runs."""

    name = "agent"

    def check(self, context: JoinContext) -> CheckResult:
        """Compare the digest of its program, so that the same command upgrades it."""
        changes: list[str] = []
        if os.path.realpath(CURRENT) != str(_installation_folder()):
            changes.append(f"install the agent {commonage.__version__} in {_installation_folder()}")
        if context.host.read(SETTINGS) != agent_settings(context):
            changes.append(f"write {SETTINGS}")
        if any(context.host.read(path) != text for path, text, _ in _service_files(context.host)):
            changes.append("run it as a systemd unit" if context.host.systemd else f"keep it running with {SCRIPT}")
        if changes or context.restart or not is_running(context.host):
            return needed(*changes, "restart the agent" if is_running(context.host) else "start the agent")
        return done(
            f"{commonage.__version__} is running{'' if context.host.systemd else ', restarted by its own loop'}"
        )

    def apply(self, context: JoinContext) -> None:
        host = context.host
        _install_program()
        STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
        host.write(SETTINGS, agent_settings(context), 0o600)
        for path, text, mode in _service_files(host):
            host.write(path, text, mode)
        if host.systemd:
            host.run_or_fail("systemctl", "daemon-reload")
        host.start_at_boot(SERVICE)
        host.service("restart", SERVICE)
        if not host.wait(lambda: is_running(host), 10):
            raise StepFailed(f"the agent does not keep running; its log ends with: {log_of(host)}")
        context.restart = False


class Registered(Step):
    """Step: the control plane sees this node. The last check."""

    name = "registered"

    def check(self, context: JoinContext) -> CheckResult:
        """Ask the control plane, with some retries for an agent that has just been started."""
        registration: dict[str, Any] = {}

        def is_registered() -> bool:
            registration.update(context.registration(swarm_node(context.host.docker).node_id))
            return bool(registration["connected"]) and registration["swarm"] == "ready"

        if context.host.read(SETTINGS) is not None and is_running(context.host):
            if context.host.wait(is_registered, _REGISTER_TIMEOUT_S):
                return done(f"{context.join_config.site} reports {context.options.node} ready")
            reason = (
                "its agent is not connected"
                if not registration.get("connected")
                else "the Swarm does not report it ready"
            )
            return blocked(
                f"{context.join_config.site} does not report this node ready: {reason}. The agent's log ends "
                f"with: {log_of(context.host)}"
            )
        return needed(f"wait until {context.join_config.site} reports this node ready")


def agent_settings(context: JoinContext) -> str:
    return config_text(agent_config(context))


def agent_config(context: JoinContext) -> AgentConfig:
    """The agent's settings: the site's, and this node's own.

    Raises StepFailed if the site is newer than this program.
    """
    options = context.options
    try:
        return AgentConfig(
            node=options.node,
            control=context.join_config.agents,
            certificate=str(CERTIFICATE),
            key=str(KEY),
            request=str(REQUEST),
            authority=str(AUTHORITY),
            state=str(STATE),
            shared=context.join_config.shared_dir,
            gpus=options.gpus,
            labels=options.labels,
            **context.join_config.agent,
        )
    except TypeError as error:
        raise StepFailed(
            f"the site sends a setting that this agent does not know ({error}): run the join command of the site again"
        ) from None


def is_running(host: Host) -> bool:
    if host.systemd:
        return host.run("systemctl", "is-active", "--quiet", SERVICE).ok
    return os.access(SCRIPT, os.X_OK) and host.run(str(SCRIPT), "status").ok


def log_of(host: Host) -> str:
    if host.systemd:
        text = host.run("journalctl", "--unit", SERVICE, "--lines", "5", "--output", "cat").out
    else:
        text = host.read(Path(f"/var/log/{SERVICE}.log")) or ""
    return " / ".join(text.splitlines()[-5:]) or "(empty)"


def _program_folder() -> Path:
    return Path(commonage.__file__).parents[1]


def _installation_folder() -> Path:
    files = sorted(path for path in _program_folder().rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    ours = [path for path in files if path.relative_to(_program_folder()).parts[0] in {"commonage", "pynvml.py"}]
    digest = hashlib.sha256()
    for path in ours:
        digest.update(f"{path.relative_to(_program_folder())}\0".encode() + path.read_bytes())
    return PROGRAMS / f"agent-{digest.hexdigest()[:16]}"


def _install_program() -> None:
    """Copy the program there, update the link to it, and remove older versions."""
    place = _installation_folder()
    if not place.is_dir():
        fresh = place.with_name(f".{place.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        shutil.copytree(
            _program_folder() / "commonage", fresh / "commonage", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(_program_folder() / "pynvml.py", fresh)
        fresh.rename(place)
    link = PROGRAMS / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(place.name)
    link.replace(CURRENT)
    for old in PROGRAMS.glob("agent-*"):
        if old != place:
            shutil.rmtree(old, ignore_errors=True)


def _service_files(host: Host) -> list[tuple[Path, str, int]]:
    python = os.path.realpath(sys.executable)
    command = f'#!/bin/sh\n# Written by Commonage.\nPYTHONPATH={CURRENT} exec {python} -s -m commonage.agent "$@"\n'
    if host.systemd:
        return [(COMMAND, command, 0o755), (UNIT, _UNIT, 0o644)]
    return [(COMMAND, command, 0o755), (SCRIPT, _init_script(), 0o755)]


def _init_script() -> str:
    script = Path(__file__).with_name("service.sh").read_text(encoding="utf-8")
    for name, value in (("SERVICE", SERVICE), ("SCRIPT", SCRIPT), ("COMMAND", COMMAND), ("SETTINGS", SETTINGS)):
        script = script.replace(f"@{name}@", str(value))
    return script


_UNIT = f"""# Written by Commonage.
[Unit]
Description=Commonage agent
After=docker.service network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart={COMMAND} run --config {SETTINGS}
Restart=always
RestartSec=2
KillMode=process
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""
