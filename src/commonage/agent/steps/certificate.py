"""Step for the agent's certificate: the site's authority signs it for this node's key and its identity in the Swarm."""

from __future__ import annotations

from commonage.agent.config import AUTHORITY, CERTIFICATE, HOME, KEY, REGISTRY_LOGIN, REQUEST
from commonage.agent.steps.host import Host
from commonage.agent.steps.service import SERVICE, is_running
from commonage.agent.steps.step import CheckResult, JoinContext, done, needed
from commonage.agent.steps.swarm import prove, swarm_node
from commonage.join.identity_proof import statement
from commonage.link.messages import NODE_ID_URI

_RENEW_BEFORE_S = 3 * 86400


class Certificate:
    """Step: the agent's certificate, which binds the node's name to its node in the Swarm.

    The key is created here and never leaves the node. `docker` is where the daemon listens.
    """

    name = "certificate"

    def __init__(self, docker: str = Host.docker) -> None:
        self._docker = docker

    def check(self, context: JoinContext) -> CheckResult:
        if context.host.read(AUTHORITY) != context.join_config.authority:
            return needed("request a certificate from the site's authority")
        if reason := _why_unusable(context, self._docker):
            return needed(f"request a new certificate: {reason}")
        until = context.host.run_or_fail("openssl", "x509", "-in", str(CERTIFICATE), "-noout", "-enddate").strip()
        return done(f"valid for {context.options.node} until {until.partition('=')[2]}")

    def apply(self, context: JoinContext) -> None:
        """Create a key if there is none, a request for it, and the proof that it comes from this Swarm node."""
        host = context.host
        node = swarm_node(self._docker)
        # While the agent uses the certificate of the node's former Swarm id, the name is not free for the current id.
        if host.read(CERTIFICATE) is not None and not _is_bound_to(host, node.node_id) and is_running(host):
            host.service("stop", SERVICE)
        HOME.mkdir(mode=0o755, parents=True, exist_ok=True)
        if host.read(KEY) is None:
            key = host.run_or_fail("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
            host.write(KEY, key, 0o600)
        request = host.run_or_fail("openssl", "req", "-new", "-key", str(KEY), "-subj", f"/CN={context.options.node}")
        signed_bytes = statement(
            context.join_config.authority, context.join_client.token, context.options.node, request
        )
        proof = prove(host, node, signed_bytes)
        body = {"csr": request, "swarm_certificates": proof.certificates, "signature": proof.signature}
        signed = context.join_client.post("/certificate", {"node": context.options.node, **body})
        host.write(REQUEST, request)
        host.write(REGISTRY_LOGIN, str(signed["registry_login"]), 0o600)
        host.write(CERTIFICATE, str(signed["certificate"]))
        host.write(AUTHORITY, context.join_config.authority)
        context.restart = True


def _why_unusable(context: JoinContext, docker: str) -> str:
    """Why the existing certificate cannot be used; empty if it can."""
    host, file = context.host, str(CERTIFICATE)
    if None in (host.read(CERTIFICATE), host.read(KEY), host.read(REQUEST)):
        return "there is no certificate"
    if not host.run("openssl", "verify", "-CAfile", str(AUTHORITY), file).ok:
        return "the certificate is of another site, or has expired"
    if not host.run("openssl", "x509", "-in", file, "-noout", "-checkend", str(_RENEW_BEFORE_S)).ok:
        return "the certificate expires soon"
    subject = host.run_or_fail("openssl", "x509", "-in", file, "-noout", "-subject", "-nameopt", "multiline")
    if not any(line.rpartition("= ")[2] == context.options.node for line in subject.splitlines()):
        return "the certificate has another name"
    node_id = swarm_node(docker).node_id
    if not _is_bound_to(host, node_id):
        return "the certificate is not bound to this machine's node in the Swarm"
    public = host.run_or_fail("openssl", "x509", "-in", file, "-noout", "-pubkey")
    if public != host.run_or_fail("openssl", "pkey", "-in", str(KEY), "-pubout"):
        return "the certificate is for another key"
    serial = host.run_or_fail("openssl", "x509", "-in", file, "-noout", "-serial").strip().partition("=")[2]
    return "the certificate is revoked" if context.registration(node_id, serial)["revoked"] else ""


def _is_bound_to(host: Host, node_id: str) -> bool:
    """Whether the existing certificate names this Swarm node. Certificates of earlier releases name none."""
    names = host.run("openssl", "x509", "-in", str(CERTIFICATE), "-noout", "-ext", "subjectAltName").out
    return f"URI:{NODE_ID_URI}{node_id}" in names.split()
