"""Steps for images: trust in the site's registry, and the images that are pulled before a workload needs them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from commonage.agent.config import REGISTRY_LOGIN
from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.step import CheckResult, JoinContext, done, needed, not_applicable

CERTIFICATES = Path("/etc/docker/certs.d")
LOGINS = Path("/root/.docker/config.json")
_PULL_TIMEOUT_S = 1800.0


class Registry:
    """Step: Docker trusts the site's registry by the site's authority. `logins` is Docker's file with credentials."""

    name = "registry"

    def __init__(self, logins: Path = LOGINS) -> None:
        self._file = logins

    def check(self, context: JoinContext) -> CheckResult:
        if not context.join_config.registry:
            return not_applicable("the site has no registry of its own")
        changes = []
        if context.host.read(_authority_file(context)) != context.join_config.authority:
            changes.append(f"trust the site's authority for {context.join_config.registry}")
        if read_logins(context.host, self._file) != self._logins(context):
            changes.append(f"log Docker in there as this node ({self._file})")
        return needed(*changes) if changes else done(f"{context.join_config.registry} is trusted")

    def apply(self, context: JoinContext) -> None:
        context.host.write(_authority_file(context), context.join_config.authority)
        context.host.write(self._file, json.dumps(self._logins(context), indent=2) + "\n", 0o600)

    def _logins(self, context: JoinContext) -> dict[str, Any]:
        """The file's credentials plus those for the site's registry."""
        kept, login_text = read_logins(context.host, self._file), context.host.read(REGISTRY_LOGIN)
        if login_text is None:  # a plan, before it joined
            return kept
        login = {"auth": base64.b64encode(login_text.encode()).decode()}
        return {**kept, "auths": {**kept.get("auths", {}), context.join_config.registry: login}}


def read_logins(host: Host, file: Path = LOGINS) -> dict[str, Any]:
    """The content of Docker's file with credentials. Raises StepFailed if it cannot be read."""
    try:
        return dict(json.loads(host.read(file) or "{}"))
    except (ValueError, TypeError) as error:
        raise StepFailed(f"{file} is not a JSON object ({error}): correct it, then run this again") from None


class Images:
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


def _authority_file(context: JoinContext) -> Path:
    return CERTIFICATES / context.join_config.registry / "ca.crt"


def _has_image(host: Host, image: str) -> bool:
    return host.run("docker", "image", "inspect", "--format", "{{.Id}}", image).ok
