"""Steps for the registry's authority, the Swarm, and images to pull before the first workload needs them."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any

from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.service import LOGIN, registration_of
from commonage.agent.steps.step import Case, Look, bad, done, needed, not_here
from commonage.domain.errors import EngineFailure
from commonage.join.config import JoinConfig

CERTIFICATES = Path("/etc/docker/certs.d")
LOGINS = Path("/root/.docker/config.json")
_MEMBER_WITHIN_S, _JOINED_WITHIN_S = 30.0, 90.0
_PULL_S = 1800.0


class Registry:
    """Step: Docker trusts the site's registry by the site's authority. `logins` is Docker's file with credentials."""

    name = "registry"

    def __init__(self, logins: Path = LOGINS) -> None:
        self._file = logins

    def look(self, case: Case) -> Look:
        """Check the files. Docker reads them at each pull."""
        if not case.join_config.registry:
            return not_here("the site has no registry of its own")
        changes = []
        if case.host.read(_authority_file(case)) != case.join_config.authority:
            changes.append(f"trust {case.join_config.registry} by the site's authority")
        if read_logins(case.host, self._file) != self._logins(case):
            changes.append(f"sign Docker in there, as a node ({self._file})")
        return needed(*changes) if changes else done(f"{case.join_config.registry} is trusted")

    def apply(self, case: Case) -> None:
        """Write the two files."""
        case.host.write(_authority_file(case), case.join_config.authority)
        case.host.write(self._file, json.dumps(self._logins(case), indent=2) + "\n", 0o600)

    def _logins(self, case: Case) -> dict[str, Any]:
        """The file's credentials plus those for the site's registry."""
        kept, mine = read_logins(case.host, self._file), case.host.read(LOGIN)
        if mine is None:  # a plan, before it joined
            return kept
        login = {"auth": base64.b64encode(mine.encode()).decode()}
        return {**kept, "auths": {**kept.get("auths", {}), case.join_config.registry: login}}


def read_logins(host: Host, file: Path = LOGINS) -> dict[str, Any]:
    """The content of Docker's file with credentials. Raises StepFailed if it cannot be read."""
    try:
        return dict(json.loads(host.read(file) or "{}"))
    except (ValueError, TypeError) as error:
        raise StepFailed(f"{file} is no JSON object ({error}); mend it") from None


class Swarm:
    """Step: this node is a worker of the site's Swarm (or its manager)."""

    name = "swarm"

    def look(self, case: Case) -> Look:
        """Compare what Docker says here with what the manager says of this node."""
        mine = swarm_of(case.host)
        state, mine_id = mine.get("LocalNodeState", "inactive"), str(mine.get("NodeID", ""))
        seen = registration_of(case, mine_id)
        if seen["taken"]:
            return bad(str(seen["taken"]))
        if mine_id and seen["swarm"]:
            return done(f"{'manager' if mine.get('ControlAvailable') else 'worker'} {mine_id}, {seen['swarm']}")
        if state == "inactive":
            return needed(f"join the Swarm of {case.join_config.managers[0]}")
        managers = [one.get("Addr", "") for one in mine.get("RemoteManagers") or ()]
        if mine.get("ControlAvailable") or not set(managers) & set(case.join_config.managers):
            return bad(
                f"Docker here is in another Swarm (managers: {', '.join(managers) or 'this machine'}); "
                "`docker swarm leave` takes it out, and ends what runs there"
            )
        return needed(
            "leave the Swarm, which does not know this machine any more", f"join {case.join_config.managers[0]}"
        )

    def apply(self, case: Case) -> None:
        """Leave an outdated Swarm, join, and wait until the manager lists this node."""
        host = case.host
        # The terms from the beginning may be minutes old, and the Swarm's token may have changed since.
        join_config = JoinConfig.from_json(case.join_client.post("/join_config", {}))
        if swarm_of(host).get("LocalNodeState", "inactive") != "inactive":
            host.must("docker", "swarm", "leave", "--force", timeout_s=120)
        address = case.options.address or own_address(join_config.managers[0])
        last = ""
        for manager in join_config.managers:
            try:
                DockerDaemon(host.docker).join_swarm(manager, join_config.swarm_token, address, _JOINED_WITHIN_S)
                break
            except EngineFailure as error:
                last = str(error)
        else:
            raise StepFailed(
                f"the Swarm of {', '.join(join_config.managers)} does not take this machine ({address}): {last}"
            )
        mine = str(swarm_of(host).get("NodeID", ""))
        if not host.wait(lambda: registration_of(case, mine)["swarm"] == "ready", _MEMBER_WITHIN_S):
            raise StepFailed(
                f"the Swarm took this machine, but its manager does not see it ready at {address}: are the ports 7946 "
                "(tcp, udp) and 4789 (udp) open between the nodes?"
            )


class Images:
    """Step: the common images are present. One that cannot be pulled now is pulled when a workload needs it."""

    name = "images"

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._had = 0

    def look(self, case: Case) -> Look:
        """Check whether each is present."""
        if not case.join_config.images:
            return not_here("no image is to be had beforehand")
        missing = [one for one in case.join_config.images if not _has_image(case.host, one)]
        wanted = [one for one in missing if one not in self._failed]
        if wanted:
            return needed(*(f"pull {one}" for one in wanted))
        here = f"{len(case.join_config.images) - len(missing)} of {len(case.join_config.images)} images are here"
        # If none could be pulled, nothing was changed.
        return not_here(f"{here}, the others could not be had now") if missing and not self._had else done(here)

    def apply(self, case: Case) -> None:
        """Pull one after the other."""
        for image in case.join_config.images:
            if _has_image(case.host, image):
                continue
            pulled = case.host.run("docker", "pull", "--quiet", image, timeout_s=_PULL_S)
            if pulled.ok:
                self._had += 1
            else:
                self._failed.add(image)
                case.notes.append(f"{image} could not be pulled now ({pulled.said}); it is when somebody needs it")


def swarm_of(host: Host) -> dict[str, Any]:
    """The daemon's description of its Swarm; empty if it does not answer."""
    ran = host.run("docker", "info", "--format", "{{json .Swarm}}", timeout_s=30) if host.has("docker") else None
    try:
        return dict(json.loads(ran.out)) if ran is not None and ran.ok else {}
    except (ValueError, TypeError):
        return {}


def own_address(manager: str) -> str:
    """The address of this node from which the manager is reached. Raises StepFailed."""
    host, _, port = manager.rpartition(":")
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((host.strip("[]"), int(port)))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise StepFailed(f"no way leads to the Swarm's manager at {manager}: {error}; see --address") from None


def _authority_file(case: Case) -> Path:
    return CERTIFICATES / case.join_config.registry / "ca.crt"


def _has_image(host: Host, image: str) -> bool:
    return host.run("docker", "image", "inspect", "--format", "{{.Id}}", image).ok
