"""This node as a node of the Swarm: its id there, and the proof that it holds the key of that node.

Used by the steps of joining. The key stays on this node: only a signature leaves it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.steps.host import Host, StepFailed
from commonage.domain.errors import EngineFailure
from commonage.join.identity_proof import IdentityProof


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
        said, signature = Path(folder, "statement"), Path(folder, "signature")
        said.write_bytes(statement)
        signed = host.run(
            "openssl", "dgst", "-sha256", "-sign", "/dev/stdin", "-out", str(signature), str(said),
            text=_without_headers(key),
        )  # fmt: skip
        if not signed.ok:
            raise StepFailed(f"nothing can be signed with {node.folder}/swarm-node.key: {signed.said}")
        return IdentityProof(certificates, base64.b64encode(signature.read_bytes()).decode())


def _read(host: Host, file: Path) -> str:
    try:
        text = host.read(file)
    except OSError as error:
        raise StepFailed(f"{file} cannot be read: {error.strerror}") from error
    if text is None:
        raise StepFailed(
            f"{file} is not here, so this machine cannot prove which Swarm node it is: a container needs Docker's "
            "folder `swarm` mounted at its very path (see COMMONAGE_DOCKER_ROOT)"
        )
    return text


def _without_headers(key: str) -> str:
    """Swarm writes its own headers (`kek-version: 0`) into the PEM, which openssl does not read."""
    return "\n".join(line for line in key.splitlines() if line and ": " not in line) + "\n"
