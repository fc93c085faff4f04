"""Gets the certificate of the agent of a Kubernetes node, by the token of its Pod."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commonage.agent.config import AgentConfig
from commonage.agent.steps.host import Host
from commonage.join.client import POD_PATH, JoinRefused, TrustedClient

_MODE = 0o600


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """`token` is the file with the projected token, which the kubelet renews; `place` the join listener, HOST:PORT."""

    config: AgentConfig
    token: Path
    place: str

    def join(self) -> None:
        """Write key, request and certificate into the state folder. Blocks.

        Raises JoinRefused, StepFailed, OSError.
        """
        host, config = Host(), self.config
        if host.read(Path(config.key)) is None:
            key = host.run_or_fail("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
            host.write(Path(config.key), key, _MODE)
        request = host.run_or_fail("openssl", "req", "-new", "-key", config.key, "-subj", "/CN=agent")
        authority = Path(config.authority).read_text(encoding="ascii")
        client = TrustedClient(self.token.read_text(encoding="ascii"), authority, (self.place,))
        joined = client.post(POD_PATH, {"csr": request})
        if joined["node"] != config.node:
            raise JoinRefused(f"the token is of a Pod on {joined['node']}, but this agent has --node {config.node}")
        host.write(Path(config.request), request, _MODE)
        host.write(Path(config.certificate), str(joined["certificate"]), _MODE)
