"""Delivery by the Swarm itself: the entry and our files that workloads read are configs, an attempt's secrets a secret.

Neither ever lies in the shared folder: no node can change a config, and a secret reaches only the node that runs its
attempt, in memory. Used by the launcher.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from commonage.domain.errors import EngineFailure
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.descriptions import LABEL, installation_filter
from commonage.engines.containers.files.control_folder import script_of
from commonage.engines.containers.files.prepare import ENTRY, files_of
from commonage.engines.swarm.client import Client

ENTRY_INSIDE = "/run/commonage/entry"
SECRETS_INSIDE = "/run/commonage/secrets"
"""The entry looks for them here: see entry.sh."""
SECRETS_MAX = 500 * 1024
"""Bytes. Swarm's limit of a secret."""
Kind = Literal["configs", "secrets"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A config or secret of the Swarm, by its id and its name."""

    id: str
    name: str


class SwarmFiles:
    """Configs and secrets of one installation. Raises EngineFailure if the Swarm does."""

    def __init__(self, client: Client, installation: str) -> None:
        self._client = client
        self._installation = installation
        self._configs: dict[str, Delivery] = {}

    async def entry(self) -> Delivery:
        return await self._config("entry", ENTRY)

    async def injected(self, request: StartRequest) -> list[tuple[Delivery, str]]:
        """The configs with our files that this request needs, and their paths in the container."""
        return [(await self._config(kind, text), place) for kind, place, text in files_of(request)]

    async def _config(self, kind: str, text: str) -> Delivery:
        """Named after its contents, so that another version is another config."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        name = f"commonage-{self._installation[:8]}-{kind}-{digest[:16]}"
        if name not in self._configs:
            found = await self._client.create_delivery("configs", self._body(name, text.encode(), {}))
            self._configs[name] = Delivery(found or await self._id_of("configs", name), name)
        return self._configs[name]

    def forget_configs(self) -> None:
        """Forget configs, because one was removed from outside."""
        self._configs.clear()

    async def secrets(self, attempt_id: str, secrets: Mapping[str, str]) -> Delivery | None:
        """The secret with an attempt's secret variables; None if it has none. Idempotent."""
        if not secrets:
            return None
        content = script_of(secrets).encode()
        if len(content) > SECRETS_MAX:
            raise EngineFailure(
                f"the secret variables of {attempt_id} take {len(content) // 1024} KiB, and Swarm takes no more than "
                f"{SECRETS_MAX // 1024} KiB: have them in a file of the workspace"
            )
        digest = hashlib.sha256(attempt_id.encode()).hexdigest()
        name = f"commonage-{self._installation[:8]}-{digest[:32]}"
        body = self._body(name, content, {f"{LABEL}.attempt": attempt_id})
        made = await self._client.create_delivery("secrets", body)
        if made is None:
            # Created by an earlier server process; its variables may have changed since, unless a service uses it
            # already.
            known = await self._id_of("secrets", name)
            if not await self._client.remove_delivery("secrets", known):
                return Delivery(known, name)
            made = await self._client.create_delivery("secrets", body)
        if made is None:
            raise EngineFailure(f"the secret {name} came back while it was removed", retryable=True)
        return Delivery(made, name)

    async def remove_secrets(self, attempt_id: str) -> None:
        """Remove the attempt's secret, if it exists and no service uses it any more."""
        for one in await self._client.deliveries(
            "secrets", installation_filter(self._installation), f"{LABEL}.attempt={attempt_id}"
        ):
            await self._client.remove_delivery("secrets", str(one["ID"]))

    async def clear(self, is_live: Callable[[str], bool]) -> None:
        """Remove the secrets of attempts that do not live, and unused configs of other versions.

        `is_live` is called after the Swarm's list is read: an attempt is known before its secret is created.
        """
        for one in await self._client.deliveries("secrets", installation_filter(self._installation)):
            attempt = str((one["Spec"].get("Labels") or {}).get(f"{LABEL}.attempt", ""))
            if not is_live(attempt) and await self._client.remove_delivery("secrets", str(one["ID"])):
                _log.info("removed the secret of %s, which does not run any more", attempt)
        await self.entry()
        for one in await self._client.deliveries("configs", installation_filter(self._installation)):
            if str(one["ID"]) not in {known.id for known in self._configs.values()}:
                await self._client.remove_delivery("configs", str(one["ID"]))

    def _body(self, name: str, content: bytes, labels: Mapping[str, str]) -> Json:
        return {
            "Name": name,
            "Labels": {f"{LABEL}.installation": self._installation, **labels},
            "Data": base64.b64encode(content).decode("ascii"),
        }

    async def _id_of(self, kind: Kind, name: str) -> str:
        for one in await self._client.deliveries(kind, installation_filter(self._installation)):
            if one["Spec"]["Name"] == name:
                return str(one["ID"])
        raise EngineFailure(
            f"the Swarm has something of the name {name} among its {kind} that is not ours; remove it: "
            f"docker {kind[:-1]} rm {name}"
        )
