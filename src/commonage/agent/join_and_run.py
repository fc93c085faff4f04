"""`python3 -m commonage.agent contained`: the agent in a container, on a node that is already in the site's Swarm.

It joins once with a token from a file, then stays as `run` does. It changes nothing on its node except what is mounted
into its container. The node's owner does the rest of what `join` does, from Docker's settings to drivers.
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
from commonage.agent.config import config_text
from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.steps.host import Host
from commonage.agent.steps.service import HOME, SETTINGS, Certificate, agent_config, registration_of
from commonage.agent.steps.step import Case, Look, Options, Step, bad, done, needed, walk
from commonage.agent.steps.swarm import Registry
from commonage.domain.errors import CommonageError
from commonage.join.client import NAME, JoinClient, Refusal, read_token
from commonage.join.config import MARK_FILE, JoinConfig, JoinConfigError

JOINED = HOME / "joined"
"""Digest of the token that the agent joined with. Another token means that it must join again."""
LOGINS = HOME / "docker.json"
_FAILED = 1
_FIRST = 1
_TOKEN = re.compile(r"cmj1\.[\w-]+\.[\w-]+", re.ASCII)
_CERTIFICATES = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n", re.DOTALL)


class Sight:
    """Step: the container sees the node's processes and the daemon's containers. `info` is Docker's own."""

    name = "sight"

    def __init__(self, info: Mapping[str, Any], pids: tuple[int, int] | None = None) -> None:
        self._info, self._pids = info, pids or (os.getpid(), os.getppid())

    def look(self, case: Case) -> Look:
        """Check the view: workloads that are not visible would be taken for gone, and requeued elsewhere."""
        if _FIRST in self._pids:
            return bad("it sees no processes but its own: the container needs the node's (pid: host)")
        folder = Path(str(self._info["DockerRootDir"])) / "containers"
        if not folder.is_dir():
            return bad(f"{folder} of Docker is not mounted at this very path: see COMMONAGE_DOCKER_ROOT")
        return done(f"{self._info['Name']}, Docker {self._info.get('ServerVersion', '?')} in {folder.parent}")

    def apply(self, case: Case) -> None:
        """Nothing to change."""


class Member:
    """Step: the node is in the site's Swarm."""

    name = "swarm"

    def __init__(self, info: Mapping[str, Any]) -> None:
        self._mine = str((info.get("Swarm") or {}).get("NodeID") or "")

    def look(self, case: Case) -> Look:
        """Check with the Swarm manager."""
        state = registration_of(case, self._mine)["swarm"] if self._mine else ""
        if state != "ready":
            return bad(
                f"this machine is not in the Swarm of {case.join_config.managers[0]}{f' but {state}' if state else ''}; "  # noqa: E501
                "on a manager `docker swarm join-token worker` says how it joins"
            )
        return done(f"{self._mine}, {state}")

    def apply(self, case: Case) -> None:
        """Nothing to change."""


class Sees:
    """Step: the shared folder is mounted in this container."""

    name = "share"

    def look(self, case: Case) -> Look:
        """Check by the mark in the folder."""
        folder = Path(case.join_config.shared_dir)
        mark = case.host.read(folder / MARK_FILE)
        if mark is None:
            return bad(f"{folder} is not mounted into the container at this very path: see COMMONAGE_SHARED_DIR")
        if mark.strip() != case.join_config.mark:
            return bad(f"{folder} is another site's folder (its {MARK_FILE} says so); mount this site's there")
        return done(f"{folder} is the site's")

    def apply(self, case: Case) -> None:
        """Nothing to change."""


class Settings:
    """Step: the agent's settings. `docker` is the daemon's address as seen from this container."""

    name = "settings"

    def __init__(self, docker: str) -> None:
        self._docker = docker

    def look(self, case: Case) -> Look:
        """Check that they match the site's."""
        if case.host.read(SETTINGS) != self._text(case):
            return needed(f"write {SETTINGS}")
        return done(f"{SETTINGS} is as the site says")

    def apply(self, case: Case) -> None:
        """Write the file."""
        case.host.write(SETTINGS, self._text(case), 0o600)

    def _text(self, case: Case) -> str:
        return config_text(replace(agent_config(case), docker=self._docker, docker_config=str(LOGINS)))


def main(arguments: Sequence[str]) -> int:
    """Join if needed, then run. Returns the exit code of `run`, or 1 if the agent has not joined and cannot."""
    asked = _parser().parse_args(arguments)
    host = Host()
    try:
        token = token_in(host.read(asked.token_file) or "")
    except OSError as error:
        return _say(f"{asked.token_file} cannot be read: {error.strerror}", _FAILED)
    digest = hashlib.sha256(token.encode()).hexdigest()
    if token and host.read(JOINED) != digest:
        why = _join(host, token, asked)
        if not why:
            host.write(JOINED, digest, 0o600)
        elif host.read(SETTINGS) is None:
            return _say(why, _FAILED)
        else:
            _say(f"{why}; it stays as it joined before", _FAILED)
    elif host.read(SETTINGS) is None:
        return _say(
            f"it has not joined yet, and {asked.token_file} holds no token that `commonage node token` printed", _FAILED
        )
    return run.main(["--config", str(SETTINGS)])


def _join(host: Host, token: str, asked: argparse.Namespace) -> str:
    """Join; returns the reason if that failed, else an empty string."""
    try:
        join_client = JoinClient(token, authority_of(host, token))
        join_config = JoinConfig.from_json(join_client.post("/join_config", {}))
        info = DockerDaemon(asked.docker).info()
    except (Refusal, JoinConfigError, CommonageError) as error:
        return str(error)
    # The agent takes the name that the Swarm has for the node.
    case = Case(
        host,
        join_config,
        join_client,
        Options(str(info["Name"]), gpus=asked.gpus),
        skew_s=time.time() - join_config.now,
    )
    steps: list[Step] = [
        Sight(info), Member(info), Sees(), Certificate(asked.docker), Registry(LOGINS),
        Settings(asked.docker),
    ]  # fmt: skip
    outcome = walk(steps, case, plan=False, tell=lambda line: print(line, flush=True))
    return f"{outcome.failed} is in the way of joining {join_config.site}" if outcome.failed else ""


def token_in(text: str) -> str:
    """The token in the output of `commonage node token`, in any of its formats; empty if there is none."""
    found = _TOKEN.search(text)
    return found[0] if found else ""


def authority_of(host: Host, token: str) -> str:
    """The certificate (PEM) of the authority that the token names. Raises Refusal.

    The control plane's join server sends it after its own certificate. The digest in the token verifies it.
    """
    said, last = read_token(token), ""
    for place in said["at"]:
        shown = host.run(
            "openssl", "s_client", "-showcerts", "-connect", place, "-servername", NAME, timeout_s=20, text=""
        )
        for pem in _CERTIFICATES.findall(shown.out):
            if hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() == said["authority"]:
                return str(pem)
        last = f"{place} does not show the certificate of the authority that the token names"
        if not _CERTIFICATES.search(shown.out):
            last = f"{place} cannot be reached: {shown.said}"
    raise Refusal(f"{last}; is the token this site's, and does no firewall stand in between?")


def _say(sentence: str, code: int) -> int:
    print(f"agent: {sentence}", flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python3 -m commonage.agent contained",
        description="Has the agent join from a container of its own, where it has not joined yet, and stay.",
    )
    add = made.add_argument
    add("--token-file", type=Path, required=True, metavar="FILE", help="what `commonage node token` printed")
    add("--docker", default="unix:///var/run/docker.sock", metavar="URL", help="the node's daemon, as seen from here")
    add("--gpus", default="none", metavar="WHICH", help="GPUs on offer: auto, none, or simulated:1x24GiB")
    return made
