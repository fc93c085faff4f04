"""The image registry as a child of the server: its settings, certificate, tokens and garbage collection.

Made by the bootstrap, started and stopped by the server's main. It is Debian's docker-registry, with its files in
DATA_DIR/registry. Layers can only be deleted safely while nothing is written, so it runs read-only for that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import secrets as chance
import shutil
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2
import yaml

from commonage.domain.errors import CommonageError, Conflict, EngineFailure
from commonage.domain.images import DELETE, PULL, PUSH, Access
from commonage.domain.iterations import Iterations
from commonage.images.registry import (
    BUILD_LASTS_S,
    ISSUER,
    LASTS_S,
    SITE_LASTS_S,
    Signer,
    Stored,
    last_needed,
    needed,
    note_needed,
    size_bytes,
    stored,
    unneeded,
)
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.registry import (
    NODE,
    Collected,
    PullToken,
    RegistryAbout,
    RegistryAccount,
    RegistryToken,
    machine_user,
)
from commonage.server.data_dir import write_private
from commonage.server.http_client import http_client
from commonage.server.processes.children import Child, ChildFailed, Supervisor, inherited_environment
from commonage.server.processes.ports import in_url, local_host

log = logging.getLogger(__name__)

_PROGRAM = "docker-registry"
_LIFE = "Commonage-Life"
_DAY_S = 86_400.0
COLLECTION_ITERATION_S = 6 * 3600.0
_FIRST_COLLECTION_S = 3_600.0
_READY_S = 30.0


@dataclass(frozen=True, slots=True)
class RegistryPlan:
    """The settings of the registry. `realm` is where its clients request tokens."""

    folder: Path
    logs: Path
    bind: str
    port: int
    host: str
    realm: str
    keep_days: int

    @property
    def address(self) -> str:
        """The first part of the names of its images."""
        return f"{self.host}:{self.port}"

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    @property
    def here(self) -> str:
        return local_host(self.bind)


class Runs(Protocol):
    """Keeps the registry running: a Supervisor, or an ExternalComponent."""

    async def start(self) -> None:
        """Start it; ready on return. Raises ChildFailed."""

    async def stop(self) -> None: ...


class PlatformRegistry:
    """The registry port, with the registry itself behind it. `machine_password` is the control plane's own."""

    def __init__(
        self,
        plan: RegistryPlan,
        authority: CertificateAuthority,
        machine_password: str,
        now: Callable[[], float] = time.time,
        supervise: Callable[[Child], Runs] = lambda child: Supervisor([child]),
    ) -> None:
        self._plan, self._authority, self._now = plan, authority, now
        self._signer = Signer()
        self._supervise = supervise
        self._running: Runs | None = None
        self._life = ""
        self._collecting = asyncio.Lock()
        self.about = RegistryAbout(plan.address, authority.certificate)
        self.account = RegistryAccount(plan.address, NODE, machine_password)

    def is_node(self, user: str, password: str) -> bool:
        """True for the control plane's account, and for that of a node with a valid certificate."""
        name, _, node = user.partition("@")
        if node:
            return user == machine_user(node) and self._authority.has_account(node, password)
        return name == NODE and hmac.compare_digest(password.encode(), self.account.password.encode())

    def token(self, subject: str, access: Sequence[Access]) -> RegistryToken:
        now = self._now()
        return RegistryToken(self._signer.sign(subject, self._plan.address, access, now), now, LASTS_S)

    def push_token(self, subject: str, repository: str) -> RegistryToken:
        now, access = self._now(), (Access("repository", repository, (PULL, PUSH)),)
        text = self._signer.sign(subject, self._plan.address, access, now, BUILD_LASTS_S)
        return RegistryToken(text, now, BUILD_LASTS_S)

    def pull_token(self, site: str, image: str) -> PullToken | None:
        """A token with which a site elsewhere pulls this image alone; None if it is in another registry."""
        if not self.account.is_for(image):
            return None
        repository = re.split("[:@]", image.removeprefix(f"{self._plan.address}/"))[0]
        access = (Access("repository", repository, (PULL,)),)
        text = self._signer.sign(f"site@{site}", self._plan.address, access, self._now(), SITE_LASTS_S)
        return PullToken(self._plan.address, text, SITE_LASTS_S)

    async def start(self) -> None:
        await asyncio.to_thread(self._write)
        await self._run(read_only=False)

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.stop()
            self._running = None

    async def collect(self, keep: Collection[str]) -> Collected:
        if self._collecting.locked():
            raise Conflict("Garbage collection of the registry is already running. Try again later.")
        async with self._collecting:
            storage = self._plan.storage
            to_remove = await asyncio.to_thread(self._find_unneeded, keep)
            had = await asyncio.to_thread(size_bytes, storage)
            await self._delete(to_remove)
            await self.stop()
            try:
                await self._run(read_only=True)
                await self._remove_layers()
            except ChildFailed as error:
                raise EngineFailure(str(error), retryable=True) from error
            finally:
                await self.stop()
                await self._restart()
            freed = had - await asyncio.to_thread(size_bytes, storage)
        log.info("registry garbage collection finished", extra={"images": len(to_remove), "freed_bytes": freed})
        return Collected(tuple(str(one) for one in to_remove), max(freed, 0))

    def _find_unneeded(self, keep: Collection[str]) -> list[Stored]:
        """Find the manifests that nothing needs and nothing has needed for long; record those that are needed now."""
        storage, now, file = self._plan.storage, self._now(), self._plan.folder / "needed.json"
        wanted, noted = needed(storage, self._plan.address, keep), last_needed(file)
        to_remove = unneeded(storage, wanted, now - self._plan.keep_days * _DAY_S, noted)
        note_needed(file, noted, dict.fromkeys(wanted, now), {str(one) for one in stored(storage)})
        return to_remove

    async def _restart(self) -> None:
        try:
            await self._run(read_only=False)
        except ChildFailed as error:
            log.critical("registry does not restart: %s", error)

    async def _run(self, *, read_only: bool) -> None:
        self._life = chance.token_hex(8)
        running = self._supervise(_child(self._plan, self._ready, read_only, self._life))
        await running.start()
        self._running = running

    async def _ready(self) -> bool:
        """Whether it answers, with its own certificate, that it requires a token, and in the newest run."""
        with contextlib.suppress(httpx2.TransportError):
            async with self._client() as client:
                answer = await client.get("/v2/")
                return answer.status_code == httpx2.codes.UNAUTHORIZED and answer.headers.get(_LIFE) == self._life
        return False

    async def _delete(self, to_remove: Sequence[Stored]) -> None:
        async with self._client() as client:
            for one in to_remove:
                token = self.token(ISSUER, (Access("repository", one.repository, (PULL, DELETE)),)).text
                try:
                    answer = await client.delete(
                        f"/v2/{one.repository}/manifests/{one.digest}", headers={"Authorization": f"Bearer {token}"}
                    )
                except httpx2.TransportError as error:
                    raise EngineFailure(f"The registry does not answer: {error}.", retryable=True) from error
                if answer.status_code not in (httpx2.codes.ACCEPTED, httpx2.codes.NOT_FOUND):
                    raise EngineFailure(f"The registry refused to remove {one}: {answer.text[:200]}")

    def _client(self) -> httpx2.AsyncClient:
        context = ssl.create_default_context(cadata=self._authority.certificate)
        return http_client(base_url=f"https://{self._plan.here}:{self._plan.port}", verify=context, timeout=30)

    async def _remove_layers(self) -> None:
        if not (self._plan.storage / "docker" / "registry" / "v2" / "repositories").exists():
            return  # nothing was ever pushed, which the program reports as an error
        process = await asyncio.create_subprocess_exec(
            _program(), "garbage-collect", str(self._plan.folder / "config.yml"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            words = output.decode("utf-8", "replace").strip().splitlines()[-3:]
            raise EngineFailure(f"docker-registry failed to remove layers: {'; '.join(words)}")

    def _write(self) -> None:
        """Write its settings and certificates. They are new at each start, so none expires."""
        plan = self._plan
        plan.storage.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan.folder.chmod(0o700)
        pair = self._authority.serve(list(dict.fromkeys((plan.host, plan.here.strip("[]"), "127.0.0.1", "localhost"))))
        write_private(plan.folder / "tls.key", pair.key_pem)
        write_private(plan.folder / "tls.crt", pair.cert_pem)
        write_private(plan.folder / "tokens.crt", self._signer.certificate(self._now()))
        write_private(plan.folder / "config.yml", yaml.safe_dump(registry_settings(plan), sort_keys=False))


class RegistryCollection:
    """The loop that collects the registry's garbage once a day. `keep` names the images that are needed."""

    def __init__(self, registry: PlatformRegistry, keep: Callable[[], Collection[str]]) -> None:
        self._registry, self._keep = registry, keep
        self.iterations = Iterations("registry", time.time, COLLECTION_ITERATION_S)

    async def run(self) -> None:
        pause_s = _FIRST_COLLECTION_S
        while True:
            with self.iterations.rest():
                await asyncio.sleep(pause_s)
            pause_s = _DAY_S
            try:
                await self._registry.collect(self._keep())
            except (CommonageError, OSError) as error:
                log.warning("registry garbage collection failed: %s", error)


def registry_settings(plan: RegistryPlan) -> dict[str, Any]:
    return {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(plan.storage)},
            "delete": {"enabled": True},
            "maintenance": {"uploadpurging": {"enabled": True, "age": "24h", "interval": "6h", "dryrun": False}},
        },
        "http": {
            "addr": f"{in_url(plan.bind)}:{plan.port}",
            "host": f"https://{plan.address}",
            "tls": {"certificate": str(plan.folder / "tls.crt"), "key": str(plan.folder / "tls.key")},
        },
        "auth": {
            "token": {
                "realm": plan.realm,
                "service": plan.address,
                "issuer": ISSUER,
                "rootcertbundle": str(plan.folder / "tokens.crt"),
            }
        },
    }


def _child(plan: RegistryPlan, ready: Callable[[], Any], read_only: bool, life: str) -> Child:
    env = {name: value for name, value in inherited_environment().items() if not name.startswith("REGISTRY_")}
    # An external one may still run with its old settings.
    env["REGISTRY_HTTP_HEADERS"] = f"{{X-Content-Type-Options: [nosniff], {_LIFE}: [{life}]}}"
    if read_only:
        env["REGISTRY_STORAGE_MAINTENANCE_READONLY"] = '{"enabled": true}'
    return Child(
        name="registry",
        argv=[_program(), "serve", str(plan.folder / "config.yml")],
        env=env,
        cwd=plan.folder,
        log_path=plan.logs / "registry.log",
        ready=ready,
        ready_s=_READY_S,
        grace_s=5,
    )


def _program() -> str:
    found = shutil.which(_PROGRAM)
    if found is None:
        raise ChildFailed(
            f"{_PROGRAM} is not installed, and the settings say `registry = true`; run: apt-get install {_PROGRAM}"
        )
    return found
