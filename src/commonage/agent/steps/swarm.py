"""Step for Swarm membership, and this node's identity in the Swarm: its id, and the proof that it holds the key.

The key stays on this node: only a signature leaves it.
"""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.step import CheckResult, JoinContext, Step, blocked, done, needed
from commonage.domain.errors import EngineFailure
from commonage.join.config import IdentityProof, JoinConfig

_READY_TIMEOUT_S, _JOIN_TIMEOUT_S = 30.0, 90.0


class Swarm(Step):
    """Step: this node is a worker of the site's Swarm (or its manager)."""

    name = "swarm"

    def check(self, context: JoinContext) -> CheckResult:
        info = swarm_info(context.host)
        state, node_id = info.get("LocalNodeState", "inactive"), str(info.get("NodeID", ""))
        registration = context.registration(node_id)
        if registration["taken"]:
            return blocked(str(registration["taken"]))
        if node_id and registration["swarm"]:
            return done(f"{'manager' if info.get('ControlAvailable') else 'worker'} {node_id}, {registration['swarm']}")
        if state == "inactive":
            return needed(f"join the Swarm of {context.join_config.managers[0]}")
        managers = [one.get("Addr", "") for one in info.get("RemoteManagers") or ()]
        if info.get("ControlAvailable") or not set(managers) & set(context.join_config.managers):
            return blocked(
                f"Docker is in another Swarm (managers: {', '.join(managers) or 'this machine'}): leave it with "
                "`docker swarm leave`, which ends its workloads, then run this again"
            )
        return needed("leave the Swarm, which no longer lists this machine", f"join {context.join_config.managers[0]}")

    def apply(self, context: JoinContext) -> None:
        """Leave an outdated Swarm, join, and wait until the manager lists this node."""
        host = context.host
        # The join config from the start may be minutes old, and the Swarm's token may have changed since.
        join_config = JoinConfig.from_json(context.join_client.post("/join-config", {}))
        if swarm_info(host).get("LocalNodeState", "inactive") != "inactive":
            host.run_or_fail("docker", "swarm", "leave", "--force", timeout_s=120)
        address = context.options.address or own_address(join_config.managers[0])
        last = ""
        for manager in join_config.managers:
            try:
                DockerDaemon(host.docker).join_swarm(manager, join_config.swarm_token, address, _JOIN_TIMEOUT_S)
                break
            except EngineFailure as error:
                last = str(error)
        else:
            raise StepFailed(
                f"the Swarm of {', '.join(join_config.managers)} did not accept this machine ({address}): {last}"
            )
        node_id = str(swarm_info(host).get("NodeID", ""))
        if not host.wait(lambda: context.registration(node_id)["swarm"] == "ready", _READY_TIMEOUT_S):
            raise StepFailed(
                f"this machine joined the Swarm, but the manager does not report it ready at {address}: open the ports "
                "7946 (tcp, udp) and 4789 (udp) between the nodes"
            )


def swarm_info(host: Host) -> dict[str, Any]:
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
        raise StepFailed(
            f"this machine has no route to the Swarm manager at {manager}: {error}; set its own address with --address"
        ) from None


@dataclass(frozen=True, slots=True)
class SwarmNode:
    """`node_id` is empty while this machine is in no Swarm. `folder` is where Docker keeps the node's certificate."""

    node_id: str
    folder: Path


def swarm_node(docker: str) -> SwarmNode:
    """The Swarm node of the Docker daemon at this URL. Raises StepFailed if it does not answer."""
    try:
        info = DockerDaemon(docker).info()
    except EngineFailure as error:
        raise StepFailed(str(error)) from error
    folder = Path(str(info["DockerRootDir"])) / "swarm" / "certificates"
    return SwarmNode(str((info.get("Swarm") or {}).get("NodeID") or ""), folder)


def prove(host: Host, node: SwarmNode, statement: bytes) -> IdentityProof:
    """The statement, signed with the node's key in the Swarm. Raises StepFailed."""
    certificates = _read(host, node.folder / "swarm-node.crt")
    key = _read(host, node.folder / "swarm-node.key")
    if "ENCRYPTED" in key:
        raise StepFailed(
            f"the key of this Swarm node in {node.folder} is locked: `docker swarm update --autolock=false` on a "
            "manager unlocks it; lock it again after joining"
        )
    with TemporaryDirectory(prefix="commonage-join-") as folder:
        statement_file, signature = Path(folder, "statement"), Path(folder, "signature")
        statement_file.write_bytes(statement)
        signed = host.run(
            "openssl", "dgst", "-sha256", "-sign", "/dev/stdin", "-out", str(signature), str(statement_file),
            text=_without_headers(key),
        )  # fmt: skip
        if not signed.ok:
            raise StepFailed(f"openssl cannot sign with {node.folder}/swarm-node.key: {signed.output_tail}")
        return IdentityProof(certificates, base64.b64encode(signature.read_bytes()).decode())


def _read(host: Host, file: Path) -> str:
    try:
        text = host.read(file)
    except OSError as error:
        raise StepFailed(f"{file} cannot be read: {error.strerror}") from error
    if text is None:
        raise StepFailed(
            f"{file} does not exist, so this machine cannot prove its identity in the Swarm: a container needs "
            "Docker's folder `swarm` mounted at the same path (see COMMONAGE_DOCKER_ROOT)"
        )
    return text


def _without_headers(key: str) -> str:
    """Swarm writes its own headers (`kek-version: 0`) into the PEM, which openssl does not read."""
    return "\n".join(line for line in key.splitlines() if line and ": " not in line) + "\n"
