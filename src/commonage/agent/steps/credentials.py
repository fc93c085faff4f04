"""Steps for the node's credentials: its certificate, its trust in the site's registry; and the images that it pulls.

The site's authority signs the certificate for this node's key and its identity in the Swarm. Images are pulled before
a workload needs them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from commonage.agent.config import AUTHORITY, CERTIFICATE, HOME, KEY, REGISTRY_LOGIN, REQUEST
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.service import SERVICE, is_running
from commonage.agent.steps.step import CheckResult, JoinContext, Step, done, needed, not_applicable
from commonage.agent.steps.swarm import prove, swarm_node
from commonage.join.config import statement
from commonage.link.messages import NODE_ID_URI

CERTIFICATES = Path("/etc/docker/certs.d")
LOGINS = Path("/root/.docker/config.json")
_RENEW_BEFORE_S = 3 * 86400
_PULL_TIMEOUT_S = 1800.0


class Certificate(Step):
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
        until = _certificate_field(context.host, "-enddate").strip().partition("=")[2]
        return done(f"valid for {context.options.node} until {until}")

    def apply(self, context: JoinContext) -> None:
        """Create a key if none exists, a request for it, and the proof that it comes from this Swarm node."""
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
    subject = _certificate_field(host, "-subject", "-nameopt", "multiline")
    if not any(line.rpartition("= ")[2] == context.options.node for line in subject.splitlines()):
        return "the certificate has another name"
    node_id = swarm_node(docker).node_id
    if not _is_bound_to(host, node_id):
        return "the certificate is not bound to this machine's node in the Swarm"
    if _certificate_field(host, "-pubkey") != host.run_or_fail("openssl", "pkey", "-in", str(KEY), "-pubout"):
        return "the certificate is for another key"
    serial = _certificate_field(host, "-serial").strip().partition("=")[2]
    return "the certificate is revoked" if context.registration(node_id, serial)["revoked"] else ""


def _certificate_field(host: Host, *options: str) -> str:
    return host.run_or_fail("openssl", "x509", "-in", str(CERTIFICATE), "-noout", *options)


def _is_bound_to(host: Host, node_id: str) -> bool:
    """Whether the existing certificate names this Swarm node. Certificates of earlier releases name none."""
    names = host.run("openssl", "x509", "-in", str(CERTIFICATE), "-noout", "-ext", "subjectAltName").out
    return f"URI:{NODE_ID_URI}{node_id}" in names.split()


class Registry(Step):
    """Step: Docker trusts the site's registry by the site's authority. `logins` is Docker's file with credentials."""

    name = "registry"

    def __init__(self, logins: Path = LOGINS) -> None:
        self._file = logins

    def check(self, context: JoinContext) -> CheckResult:
        if not context.join_config.registry:
            return not_applicable("the site has no registry of its own")
        changes = []
        if context.host.read(_authority_file(context)) != _registry_authority(context):
            changes.append(f"trust the site's authority for {context.join_config.registry}")
        if read_logins(context.host, self._file) != self._logins(context):
            changes.append(f"log Docker in there as this node ({self._file})")
        return needed(*changes) if changes else done(f"{context.join_config.registry} is trusted")

    def apply(self, context: JoinContext) -> None:
        context.host.write(_authority_file(context), _registry_authority(context))
        if read_logins(context.host, self._file) != (logins := self._logins(context)):
            context.host.write(self._file, json.dumps(logins, indent=2) + "\n", 0o600)

    def _logins(self, context: JoinContext) -> dict[str, Any]:
        """The file's credentials plus those for the site's registry."""
        kept, login_text = read_logins(context.host, self._file), context.host.read(REGISTRY_LOGIN)
        if login_text is None or context.join_config.registry_authority:  # a plan, before it joined; an appliance
            return kept
        login = {"auth": base64.b64encode(login_text.encode()).decode()}
        return {**kept, "auths": {**kept.get("auths", {}), context.join_config.registry: login}}


def read_logins(host: Host, file: Path = LOGINS) -> dict[str, Any]:
    """The content of Docker's file with credentials. Raises StepFailed if it cannot be read."""
    try:
        return dict(json.loads(host.read(file) or "{}"))
    except (ValueError, TypeError) as error:
        raise StepFailed(f"{file} is not a JSON object ({error}): correct it, then run this again") from None


class Images(Step):
    """Step: the common images are present. One that cannot be pulled now is pulled when a workload needs it."""

    name = "images"

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._pulled = 0

    def check(self, context: JoinContext) -> CheckResult:
        if not context.join_config.images:
            return not_applicable("the site lists no image to pull")
        missing = [one for one in context.join_config.images if not _has_image(context.host, one)]
        wanted = [one for one in missing if one not in self._failed]
        if wanted:
            return needed(*(f"pull {one}" for one in wanted))
        here = (
            f"{len(context.join_config.images) - len(missing)} of {len(context.join_config.images)} images are present"
        )
        # If none could be pulled, nothing was changed.
        return (
            not_applicable(f"{here}; the others could not be pulled now")
            if missing and not self._pulled
            else done(here)
        )

    def apply(self, context: JoinContext) -> None:
        for image in context.join_config.images:
            if _has_image(context.host, image):
                continue
            pulled = context.host.run("docker", "pull", "--quiet", image, timeout_s=_PULL_TIMEOUT_S)
            if pulled.ok:
                self._pulled += 1
            else:
                self._failed.add(image)
                context.notes.append(
                    f"{image} could not be pulled now ({pulled.output_tail}); it is pulled when a workload needs it"
                )


def _registry_authority(context: JoinContext) -> str:
    return context.join_config.registry_authority or context.join_config.authority


def _authority_file(context: JoinContext) -> Path:
    return CERTIFICATES / context.join_config.registry / "ca.crt"


def _has_image(host: Host, image: str) -> bool:
    return host.run("docker", "image", "inspect", "--format", "{{.Id}}", image).ok
