"""Steps for the agent: its certificate, files and settings, and its service, by systemd or by a loop of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import commonage
from commonage.agent.config import AgentConfig, config_text
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.step import Case, Look, bad, done, needed
from commonage.agent.steps.swarm_identity import prove, swarm_node
from commonage.join.identity_proof import statement
from commonage.link.messages import NODE_ID_URI

HOME = Path("/etc/commonage")
SETTINGS, KEY, REQUEST = HOME / "agent.toml", HOME / "agent.key", HOME / "agent.csr"
CERTIFICATE, AUTHORITY = HOME / "agent.crt", HOME / "ca.crt"
LOGIN = HOME / "registry-login"
"""NAME:PASSWORD of this node at the site's registry: issued with the certificate, and valid as long."""
PROGRAMS = Path("/usr/local/lib/commonage")
CURRENT = PROGRAMS / "agent"
COMMAND = Path("/usr/local/sbin/commonage-agent")
SERVICE = "commonage-agent"
UNIT = Path(f"/etc/systemd/system/{SERVICE}.service")
SCRIPT = Path(f"/etc/init.d/{SERVICE}")
STATE = Path("/var/lib/commonage-agent")
_RENEW_WITHIN_S = 3 * 86400
_SEEN_WITHIN_S = 60.0


class Certificate:
    """Step: the agent's certificate, which binds the node's name to its node in the Swarm.

    The key is created here and never leaves the node. `docker` is where the daemon listens.
    """

    name = "certificate"

    def __init__(self, docker: str = Host.docker) -> None:
        self._docker = docker

    def look(self, case: Case) -> Look:
        """Check that it exists, is of this site's authority and this name, is valid for a while, and not revoked."""
        if case.host.read(AUTHORITY) != case.join_config.authority:
            return needed("have the site's authority sign a certificate for this machine")
        if why := _unfit(case, self._docker):
            return needed(f"have a new certificate signed: {why}")
        until = case.host.must("openssl", "x509", "-in", str(CERTIFICATE), "-noout", "-enddate").strip()
        return done(f"for {case.options.node}, until {until.partition('=')[2]}")

    def apply(self, case: Case) -> None:
        """Create a key if there is none, a request for it, and the proof that it comes from this Swarm node."""
        host = case.host
        node = swarm_node(self._docker)
        # While the agent uses the certificate of the node's former Swarm id, the name is not free for the current id.
        if host.read(CERTIFICATE) is not None and not _is_bound_to(host, node.node_id) and runs(host):
            host.service("stop", SERVICE)
        HOME.mkdir(mode=0o755, parents=True, exist_ok=True)
        if host.read(KEY) is None:
            key = host.must("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
            host.write(KEY, key, 0o600)
        request = host.must("openssl", "req", "-new", "-key", str(KEY), "-subj", f"/CN={case.options.node}")
        said = statement(case.join_config.authority, case.join_client.token, case.options.node, request)
        proof = prove(host, node, said)
        ask = {"csr": request, "swarm_certificates": proof.certificates, "signature": proof.signature}
        signed = case.join_client.post("/certificate", {"node": case.options.node, **ask})
        host.write(REQUEST, request)
        host.write(LOGIN, str(signed["registry_login"]), 0o600)
        host.write(CERTIFICATE, str(signed["certificate"]))
        host.write(AUTHORITY, case.join_config.authority)
        case.restart = True


class Agent:
    """Step: the agent's program and settings, and that it runs."""

    name = "agent"

    def look(self, case: Case) -> Look:
        """Compare the digest of its program, so that the same command upgrades it."""
        changes: list[str] = []
        if os.path.realpath(CURRENT) != str(_place()):
            changes.append(f"put the agent {commonage.__version__} into {_place()}")
        if case.host.read(SETTINGS) != agent_settings(case):
            changes.append(f"write {SETTINGS}")
        if any(case.host.read(path) != text for path, text, _ in _files(case.host)):
            changes.append("have it run as a systemd unit" if case.host.systemd else f"have {SCRIPT} keep it running")
        if changes or case.restart or not runs(case.host):
            return needed(*changes, "restart the agent" if runs(case.host) else "start the agent")
        return done(f"{commonage.__version__} runs{'' if case.host.systemd else ', kept running by its own loop'}")

    def apply(self, case: Case) -> None:
        """Write the files, then start it."""
        host = case.host
        _put_program()
        STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
        host.write(SETTINGS, agent_settings(case), 0o600)
        for path, text, mode in _files(host):
            host.write(path, text, mode)
        if host.systemd:
            host.must("systemctl", "daemon-reload")
        host.start_at_boot(SERVICE)
        host.service("restart", SERVICE)
        if not host.wait(lambda: runs(host), 10):
            raise StepFailed(f"the agent does not stay up: {log_of(host)}")
        case.restart = False


class Registered:
    """Step: the control plane sees this node. The last check."""

    name = "seen"

    def look(self, case: Case) -> Look:
        """Ask the control plane, with some retries for an agent that has just been started."""
        said: dict[str, Any] = {}

        def is_seen() -> bool:
            said.update(registration_of(case, swarm_node(case.host.docker).node_id))
            return bool(said["connected"]) and said["swarm"] == "ready"

        if case.host.read(SETTINGS) is not None and runs(case.host):
            if case.host.wait(is_seen, _SEEN_WITHIN_S):
                return done(f"{case.join_config.site} sees {case.options.node} ready")
            what = "its agent is not connected" if not said.get("connected") else "the Swarm does not see it ready"
            return bad(
                f"{case.join_config.site} does not see this machine: {what}; the agent says: {log_of(case.host)}"
            )
        return needed(f"wait until {case.join_config.site} sees this machine")

    def apply(self, case: Case) -> None:
        """Nothing to change: by now the agent runs, or an earlier step has said why not."""


def agent_settings(case: Case) -> str:
    """The text of the agent's settings. Raises StepFailed."""
    return config_text(agent_config(case))


def agent_config(case: Case) -> AgentConfig:
    """The agent's settings: the site's, and this node's own.

    Raises StepFailed if the site is newer than this program.
    """
    options = case.options
    try:
        return AgentConfig(
            node=options.node,
            control=case.join_config.agents,
            certificate=str(CERTIFICATE),
            key=str(KEY),
            request=str(REQUEST),
            authority=str(AUTHORITY),
            state=str(STATE),
            shared=case.join_config.shared_dir,
            gpus=options.gpus,
            labels=options.labels,
            **case.join_config.agent,
        )
    except TypeError as error:
        raise StepFailed(f"the site says something of its agents that this one does not know: {error}") from None


def runs(host: Host) -> bool:
    """Whether the agent runs."""
    if host.systemd:
        return host.run("systemctl", "is-active", "--quiet", SERVICE).ok
    return os.access(SCRIPT, os.X_OK) and host.run(str(SCRIPT), "status").ok


def log_of(host: Host) -> str:
    """The end of the agent's log, for people."""
    if host.systemd:
        text = host.run("journalctl", "--unit", SERVICE, "--lines", "5", "--output", "cat").out
    else:
        text = host.read(Path(f"/var/log/{SERVICE}.log")) or ""
    return " / ".join(text.splitlines()[-5:]) or "nothing"


def registration_of(case: Case, node_id: str, serial: str = "") -> dict[str, Any]:
    """The control plane's view of this node under this Swarm node id: `JoinService.seen`."""
    return case.join_client.post("/seen", {"node": case.options.node, "node_id": node_id, "serial": serial})


def _unfit(case: Case, docker: str) -> str:
    """Why the existing certificate cannot be used; empty if it can."""
    host, shown = case.host, str(CERTIFICATE)
    if None in (host.read(CERTIFICATE), host.read(KEY), host.read(REQUEST)):
        return "there is none"
    if not host.run("openssl", "verify", "-CAfile", str(AUTHORITY), shown).ok:
        return "the one here is not the site's, or has expired"
    if not host.run("openssl", "x509", "-in", shown, "-noout", "-checkend", str(_RENEW_WITHIN_S)).ok:
        return "the one here ends soon"
    subject = host.must("openssl", "x509", "-in", shown, "-noout", "-subject", "-nameopt", "multiline")
    if not any(line.rpartition("= ")[2] == case.options.node for line in subject.splitlines()):
        return "the one here has another name"
    node_id = swarm_node(docker).node_id
    if not _is_bound_to(host, node_id):
        return "the one here is not bound to this machine's node in the Swarm"
    public = host.must("openssl", "x509", "-in", shown, "-noout", "-pubkey")
    if public != host.must("openssl", "pkey", "-in", str(KEY), "-pubout"):
        return "the one here is for another key"
    serial = host.must("openssl", "x509", "-in", shown, "-noout", "-serial").strip().partition("=")[2]
    return "the one here was revoked" if registration_of(case, node_id, serial)["revoked"] else ""


def _is_bound_to(host: Host, node_id: str) -> bool:
    """Whether the existing certificate names this Swarm node. Certificates of earlier releases name none."""
    names = host.run("openssl", "x509", "-in", str(CERTIFICATE), "-noout", "-ext", "subjectAltName").out
    return f"URI:{NODE_ID_URI}{node_id}" in names.split()


def _source() -> Path:
    """The folder of the running program."""
    return Path(commonage.__file__).parents[1]


def _place() -> Path:
    """The installation folder, named after the digest of its content."""
    files = sorted(path for path in _source().rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    ours = [path for path in files if path.relative_to(_source()).parts[0] in {"commonage", "pynvml.py"}]
    digest = hashlib.sha256()
    for path in ours:
        digest.update(f"{path.relative_to(_source())}\0".encode() + path.read_bytes())
    return PROGRAMS / f"agent-{digest.hexdigest()[:16]}"


def _put_program() -> None:
    """Copy the program there, update the link to it, and remove older versions."""
    place = _place()
    if not place.is_dir():
        fresh = place.with_name(f".{place.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        shutil.copytree(_source() / "commonage", fresh / "commonage", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(_source() / "pynvml.py", fresh)
        fresh.rename(place)
    link = PROGRAMS / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(place.name)
    link.replace(CURRENT)
    for old in PROGRAMS.glob("agent-*"):
        if old != place:
            shutil.rmtree(old, ignore_errors=True)


def _files(host: Host) -> list[tuple[Path, str, int]]:
    """The service files: path, text, mode."""
    python = os.path.realpath(sys.executable)
    command = f'#!/bin/sh\n# Made by Commonage.\nPYTHONPATH={CURRENT} exec {python} -s -m commonage.agent "$@"\n'
    if host.systemd:
        return [(COMMAND, command, 0o755), (UNIT, _UNIT, 0o644)]
    return [(COMMAND, command, 0o755), (SCRIPT, _SCRIPT, 0o755)]


_UNIT = f"""# Made by Commonage.
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

_SCRIPT = f"""#!/bin/sh
### BEGIN INIT INFO
# Provides:          {SERVICE}
# Required-Start:    $network $remote_fs docker
# Required-Stop:     $network $remote_fs
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
# Short-Description: Commonage agent, in a loop that starts it again
### END INIT INFO
# Made by Commonage.
pids=/run/{SERVICE}.pid
log=/var/log/{SERVICE}.log

runs() {{
  [ -s "$pids" ] && tr '\\0' ' ' <"/proc/$(cat "$pids")/cmdline" 2>/dev/null | grep -q '{SCRIPT.name} loop'
}}

end() {{
  runs || return 0
  # The loop and the agent are one process group.
  kill -s TERM -- "-$(cat "$pids")" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    runs || break
    sleep 0.25
  done
  runs && kill -s KILL -- "-$(cat "$pids")" 2>/dev/null
  rm -f "$pids"
}}

begin() {{
  runs && return 0
  setsid --fork {SCRIPT} loop </dev/null >>"$log" 2>&1
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
    runs && return 0
    sleep 0.25
  done
  return 1
}}

case "$1" in
  start) begin ;;
  stop) end ;;
  restart | force-reload) end && begin ;;
  status) runs ;;
  loop)
    echo $$ >"$pids"
    trap 'kill "$agent" 2>/dev/null; exit 0' TERM INT
    while :; do
      # A log that grows without end fills the disk.
      [ "$(wc -c <"$log")" -lt 10000000 ] || : >"$log"
      {COMMAND} run --config {SETTINGS} &
      agent=$!
      wait "$agent"
      sleep 2
    done
    ;;
  *)
    echo "usage: $0 start|stop|restart|status" >&2
    exit 2
    ;;
esac
"""
