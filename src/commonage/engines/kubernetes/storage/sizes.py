"""How large the claims of a cluster are: requested sizes count in the tenant's quota, used sizes are shown.

The port `Homes`. Folders that no claim holds are measured on the control plane's machine, as on other engines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from commonage.domain.errors import EngineFailure, Unavailable
from commonage.domain.volumes import Extent, Volume, VolumeKind, folder_name, source_of
from commonage.engines.kubernetes.client import NODES, VOLUME_CLAIMS, Client, Refused
from commonage.engines.kubernetes.manifest import Manifest, reading
from commonage.engines.kubernetes.stats import count_of
from commonage.engines.kubernetes.storage.claims import VOLUME, size_mib, volume_claim_name
from commonage.engines.kubernetes.tenants.names import OWNER, TENANT
from commonage.engines.kubernetes.translate import selector_of
from commonage.engines.settings import KubernetesSettings
from commonage.ports.homes import Enforcement, FolderSize, Homes, OwnedFolder

_MIB = 1024 * 1024
_SUMMARY_S = 10.0
_MAX_WARNINGS = 100
_log = logging.getLogger(__name__)


class ClaimSizes:
    """`pods` returns our Pods as last seen. Where no Pod mounts a claim, its use is the last that a kubelet told."""

    def __init__(
        self, client: Client, installation: str, settings: KubernetesSettings, pods: Callable[[], Sequence[Manifest]]
    ) -> None:
        self._client, self._installation, self._settings, self._pods = client, installation, settings, pods
        self._used: dict[tuple[str, str], int] = {}
        self._warned: set[str] = set()

    async def measure(self) -> Sequence[FolderSize]:
        """Raises EngineFailure."""
        claims = await self.claims()
        if claims:
            await self._read_use()
        keys = {_key(one) for one in claims}
        self._used = {key: mib for key, mib in self._used.items() if key in keys}
        folders = []
        for one in claims:
            try:
                with reading(f"the PersistentVolumeClaim {'/'.join(_key(one))}"):
                    folders.append(self._folder(one))
            except EngineFailure as error:
                self._warn(str(error))
        return folders

    async def claims(self) -> Sequence[Manifest]:
        """Those of this installation; none if they may not be listed. Raises EngineFailure."""
        where = self._settings.namespace if self._settings.namespaces == "single" else None
        try:
            listed = await self._client.list_all(VOLUME_CLAIMS.path(where), selector_of(self._installation))
        except Refused as error:
            if error.http_status != 403:
                raise
            self._warn("the size of claims is unknown: this account may not list persistentvolumeclaims")
            return []
        return listed.items

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(text)
            _log.warning("%s", text)

    def _folder(self, claim: Manifest) -> FolderSize:
        owner, used = _true(claim, OWNER), self._used.get(_key(claim))
        return FolderSize(
            volume=_true(claim, VOLUME),
            tenant=folder_name(_true(claim, TENANT)),
            user=folder_name(owner) if owner else None,
            used_mib=used or 0,
            size_mib=size_mib(claim),
            is_known=used is not None,
        )

    async def _read_use(self) -> None:
        nodes = {one["spec"].get("nodeName") for one in self._pods() if _claims_of(one)} - {None}
        answers = await asyncio.gather(*(self._used_on(str(node)) for node in nodes), return_exceptions=True)
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, EngineFailure | TimeoutError):
                _log.info("cannot read the use of claims on node %s: %s", node, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._used |= answer

    async def _used_on(self, node: str) -> dict[tuple[str, str], int]:
        async with asyncio.timeout(_SUMMARY_S):
            summary = await self._client.get(NODES.path(None, node, "proxy/stats/summary"))
        return used_in(summary)


def used_in(summary: Manifest) -> dict[tuple[str, str], int]:
    """MiB in each claim (namespace, name) that a Pod of the node mounts, from its kubelet's summary.

    Raises EngineFailure.
    """
    with reading("the summary of a kubelet"):
        volumes = (volume for pod in summary.get("pods") or () for volume in pod.get("volume") or ())
        return {
            (str(one["pvcRef"]["namespace"]), str(one["pvcRef"]["name"])): -(-count_of(one["usedBytes"]) // _MIB)
            for one in volumes
            if "pvcRef" in one and "usedBytes" in one
        }


class ClusterHomes(Homes):
    """`sizes` are those of the open engine."""

    def __init__(self, local: Homes, sizes: Callable[[], ClaimSizes]) -> None:
        self._local, self._sizes = local, sizes

    async def measure(self) -> Mapping[str, int]:
        """None: homes are among the claims of `measure_volumes`, or are not measured."""
        return {}

    async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        folders = await self._local.measure_volumes(volumes)
        try:
            return [*folders, *await self._sizes().measure()]
        except EngineFailure as error:
            raise Unavailable(f"Cannot measure the claims of the cluster: {error.message}") from error

    async def claims_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[str]:
        known = {one.name: one for one in volumes if one.kind is VolumeKind.DOCKER and one.per is Extent.USER}
        try:
            claims = await self._sizes().claims()
        except EngineFailure as error:
            raise Unavailable(f"Cannot list the claims of the cluster: {error.message}") from error
        return sorted(
            "/".join(_key(one))
            for one in claims
            if (tenant is not None and _true(one, TENANT) == tenant)
            or (user is not None and _is_of_user(one, user, known))
        )

    async def enforce(
        self,
        homes: Mapping[str, int | None],
        folders: Sequence[tuple[FolderSize, int | None]],
        volumes: Sequence[Volume],
    ) -> Enforcement | None:
        """Storage classes enforce the sizes of claims."""
        found = await self._local.enforce({}, folders, volumes)
        return None if found is None else Enforcement(None, found.volumes)

    async def folders_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[OwnedFolder]:
        return await self._local.folders_of(volumes, user=user, tenant=tenant)

    def place(self, folder: OwnedFolder, name: str, within: str | None = None) -> str:
        return self._local.place(folder, name, within)

    async def is_free(self, path: str) -> bool:
        return await self._local.is_free(path)

    async def move(self, folder: OwnedFolder, to: str) -> None:
        await self._local.move(folder, to)

    @property
    def archives(self) -> str:
        return self._local.archives

    async def archive(self, folder: OwnedFolder, name: str) -> None:
        await self._local.archive(folder, name)

    async def delete(self, folder: OwnedFolder) -> None:
        await self._local.delete(folder)


def _is_of_user(claim: Manifest, user: str, volumes: Mapping[str, Volume]) -> bool:
    """`volumes`: those of which each user has a claim. It has no label of the user, whose name is in its own."""
    volume = volumes.get(_true(claim, VOLUME))
    if volume is None:
        return _true(claim, OWNER) == user
    return _key(claim)[1] == volume_claim_name(source_of(volume, user, _true(claim, TENANT)))


def _key(claim: Manifest) -> tuple[str, str]:
    return str(claim["metadata"]["namespace"]), str(claim["metadata"]["name"])


def _true(claim: Manifest, key: str) -> str:
    """The value of a label that may be too long for one; then an annotation has it."""
    metadata = claim["metadata"]
    return str((metadata.get("annotations") or {}).get(key) or (metadata.get("labels") or {}).get(key, ""))


def _claims_of(pod: Manifest) -> bool:
    return any("persistentVolumeClaim" in one for one in pod["spec"].get("volumes") or ())
