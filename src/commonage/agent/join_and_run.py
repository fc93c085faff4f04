"""`python3 -m commonage.agent join-and-run`: the agent in a container, on a node that is already in the site's Swarm.

It joins once with a token from a file, then runs like `run`. It changes only files that are mounted into its container.
The node's owner does the rest of `join`, from Docker's settings to drivers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonage.agent import run
from commonage.agent.config import HOME, SETTINGS, config_text
from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.steps.credentials import Certificate, Registry
from commonage.agent.steps.host import Host
from commonage.agent.steps.service import agent_config
from commonage.agent.steps.step import CheckResult, JoinContext, Options, Step, blocked, done, needed, run_steps
from commonage.agent.steps.storage import check_mark
from commonage.domain.errors import CommonageError
from commonage.join.client import NAME, JoinClient, JoinRefused, read_token
from commonage.join.config import JoinConfig, JoinConfigError

JOINED = HOME / "joined"
"""Digest of the token that the agent joined with. Another token means that it must join again."""
LOGINS = HOME / "docker.json"
_INIT_PID = 1
_TOKEN = re.compile(r"cmj1\.[\w-]+\.[\w-]+", re.ASCII)
_CERTIFICATES = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)


class Visibility(Step):
    """Step: the container sees the node's processes and the daemon's containers. `info` is Docker's own."""

    name = "visibility"

    def __init__(self, info: Mapping[str, Any], pids: tuple[int, int] | None = None) -> None:
        self._info, self._pids = info, pids or (os.getpid(), os.getppid())

    def check(self, context: JoinContext) -> CheckResult:
        if _INIT_PID in self._pids:
            return blocked(
                "the container sees only its own processes: start it in the node's PID namespace (pid: host)"
            )
        folder = Path(str(self._info["DockerRootDir"])) / "containers"
        if not folder.is_dir():
            return blocked(f"Docker's folder {folder} is not mounted at the same path: set COMMONAGE_DOCKER_ROOT")
        return done(f"{self._info['Name']}, Docker {self._info.get('ServerVersion', '?')} in {folder.parent}")


class SwarmMembership(Step):
    """Step: the node is in the site's Swarm."""

    name = "swarm"

    def __init__(self, info: Mapping[str, Any]) -> None:
        self._node_id = str((info.get("Swarm") or {}).get("NodeID") or "")

    def check(self, context: JoinContext) -> CheckResult:
        state = context.registration(self._node_id)["swarm"] if self._node_id else ""
        if state != "ready":
            return blocked(
                f"this node is not ready in the Swarm of {context.join_config.managers[0]}"
                f"{f' (state: {state})' if state else ''}: join it with the command that "
                "`docker swarm join-token worker` shows on a manager"
            )
        return done(f"{self._node_id}, {state}")


class SharedFolder(Step):
    """Step: the shared folder is mounted in this container."""

    name = "share"

    def check(self, context: JoinContext) -> CheckResult:
        folder = context.join_config.shared_dir
        return check_mark(context) or blocked(
            f"{folder} is not mounted into the container at the same path: set COMMONAGE_SHARED_DIR"
        )


class Settings(Step):
    """Step: the agent's settings. `docker` is the daemon's address as seen from this container."""

    name = "settings"

    def __init__(self, docker: str) -> None:
        self._docker = docker

    def check(self, context: JoinContext) -> CheckResult:
        if context.host.read(SETTINGS) != self._text(context):
            return needed(f"write {SETTINGS}")
        return done(f"{SETTINGS} matches the site")

    def apply(self, context: JoinContext) -> None:
        context.host.write(SETTINGS, self._text(context), 0o600)

    def _text(self, context: JoinContext) -> str:
        return config_text(replace(agent_config(context), docker=self._docker, docker_config=str(LOGINS)))


def main(arguments: Sequence[str]) -> int:
    """Join if needed, then run. Returns the exit code of `run`, or 1 if the agent has not joined and cannot."""
    given = _parser().parse_args(arguments)
    host = Host()
    try:
        token = token_in(host.read(given.token_file) or "")
    except OSError as error:
        return _fail(f"{given.token_file} cannot be read: {error.strerror}")
    digest = hashlib.sha256(token.encode()).hexdigest()
    if token and host.read(JOINED) != digest:
        failure = _join(host, token, given)
        if not failure:
            host.write(JOINED, digest, 0o600)
        elif host.read(SETTINGS) is None:
            return _fail(failure)
        else:
            _fail(f"{failure}; it keeps the settings of its last join")
    elif host.read(SETTINGS) is None:
        return _fail(
            f"this node has not joined yet, and {given.token_file} contains no join token: `commonage node token` "
            "prints one"
        )
    return run.main(["--config", str(SETTINGS)])


def _join(host: Host, token: str, given: argparse.Namespace) -> str:
    """Join; returns the reason if that failed, else an empty string."""
    try:
        join_client = JoinClient(token, authority_of(host, token))
        join_config = JoinConfig.from_json(join_client.post("/join-config", {}))
        info = DockerDaemon(given.docker).info()
    except (JoinRefused, JoinConfigError, CommonageError) as error:
        return str(error)
    # The agent takes the name that the Swarm has for the node.
    context = JoinContext(
        host,
        join_config,
        join_client,
        Options(str(info["Name"]), gpus=given.gpus),
        skew_s=time.time() - join_config.now,
    )
    steps: list[Step] = [
        Visibility(info), SwarmMembership(info), SharedFolder(), Certificate(given.docker), Registry(LOGINS),
        Settings(given.docker),
    ]  # fmt: skip
    outcome = run_steps(steps, context, plan=False, print_line=lambda line: print(line, flush=True))
    return f"step {outcome.failed} of joining {join_config.site} failed" if outcome.failed else ""


def token_in(text: str) -> str:
    """The token in the output of `commonage node token`, in any of its formats; empty if there is none."""
    match = _TOKEN.search(text)
    return match[0] if match else ""


def authority_of(host: Host, token: str) -> str:
    """The certificate (PEM) of the authority that the token names. Raises JoinRefused.

    The control plane's join server sends it after its own certificate. The digest in the token verifies it.
    """
    content, last = read_token(token), ""
    for place in content["at"]:
        shown = host.run(
            "openssl", "s_client", "-showcerts", "-connect", place, "-servername", NAME, timeout_s=20, text=""
        )
        for pem in _CERTIFICATES.findall(shown.out):
            if hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() == content["authority"]:
                return str(pem)
        last = f"{place} does not send the certificate of the authority that the token names"
        if not _CERTIFICATES.search(shown.out):
            last = f"{place} cannot be reached: {shown.output_tail}"
    raise JoinRefused(f"{last}. Check that the token is of this site, and that no firewall blocks the connection")


def _fail(sentence: str) -> int:
    print(f"agent: {sentence}", flush=True)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m commonage.agent join-and-run",
        description="Join this node from a container if it has not joined yet, then run the agent.",
    )
    add = parser.add_argument
    add("--token-file", type=Path, required=True, metavar="FILE", help="file with the output of `commonage node token`")
    add(
        "--docker",
        default="unix:///var/run/docker.sock",
        metavar="URL",
        help="the node's Docker daemon, as seen from the container",
    )
    add("--gpus", default="none", metavar="WHICH", help="GPUs to share: auto, none, or simulated:1x24GiB")
    return parser
