"""The surroundings of a container's program: variables, volumes and their paths in its words. For the double's kubelet.

Programs see this machine's own files. A mounted path is therefore replaced, wherever it stands in a container's words
and variables, by the folder of its volume below `root`. Folders of the node are folders below `root` as well.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.fakes.kubernetes.store import CONFIG_MAPS, SECRETS, VOLUME_CLAIMS, Kind, Store

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]+)\))")


class NotReady(Exception):
    """Something that the container needs is not there, or not yet."""


@dataclass(frozen=True)
class Surroundings:
    store: Store
    root: Path
    address: str

    # --- variables ------------------------------------------------------------------------------------------------

    def variables(self, pod: Manifest, container: Manifest) -> dict[str, str]:
        """Raises NotReady."""
        found = {"PATH": os.environ["PATH"], "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]}
        for one in container.get("envFrom") or ():
            kind, source = (SECRETS, one["secretRef"]) if "secretRef" in one else (CONFIG_MAPS, one["configMapRef"])
            data = self._data(kind, pod, source)
            found |= {f"{one.get('prefix', '')}{name}": value.decode() for name, value in (data or {}).items()}
        for one in container.get("env") or ():
            value = self._value(pod, one["valueFrom"]) if "valueFrom" in one else expanded(one.get("value", ""), found)
            if value is not None:
                found[one["name"]] = value
        return found

    def _value(self, pod: Manifest, source: Manifest) -> str | None:
        if field := source.get("fieldRef"):
            return self._field(pod, field["fieldPath"])
        kind, reference = (
            (SECRETS, source["secretKeyRef"]) if "secretKeyRef" in source else (CONFIG_MAPS, source["configMapKeyRef"])
        )
        data = self._data(kind, pod, reference)
        if data is None:
            return None
        if reference["key"] not in data:
            if reference.get("optional"):
                return None
            where = f"{kind.name} {pod['metadata']['namespace']}/{reference['name']}"
            raise NotReady(f"couldn't find key {reference['key']} in {where}")
        return data[reference["key"]].decode()

    def _field(self, pod: Manifest, path: str) -> str:
        own = {"status.podIP": self.address, "status.podIPs": self.address, "status.hostIP": "127.0.0.1"}
        if path in own:
            return own[path]
        name, bracket, key = path.partition("['")
        found: Any = pod
        for part in name.split("."):
            found = (found or {}).get(part)
        return str((found or {}).get(key.removesuffix("']"), "") if bracket else found or "")

    def _data(self, kind: Kind, pod: Manifest, reference: Manifest) -> dict[str, bytes] | None:
        """None for an optional one that is not there."""
        name = reference.get("name") or reference["secretName"]
        found = self.store.find(kind, (pod["metadata"]["namespace"], name))
        if found is None:
            if reference.get("optional"):
                return None
            raise NotReady(f'{"secret" if kind is SECRETS else "configmap"} "{name}" not found')
        data = found.get("data") or {}
        if kind is SECRETS:
            return {key: base64.b64decode(value) for key, value in data.items()}
        return {key: str(value).encode() for key, value in data.items()}

    # --- volumes --------------------------------------------------------------------------------------------------

    def mounts(self, pod: Manifest, container: Manifest) -> dict[str, Path]:
        """The folder of each mounted path. Raises NotReady."""
        volumes = {one["name"]: one for one in pod["spec"].get("volumes") or ()}
        found = {}
        for mount in container.get("volumeMounts") or ():
            folder = self._folder(pod, volumes[mount["name"]])
            found[mount["mountPath"]] = folder / mount.get("subPath", "")
            if "subPath" in mount:
                found[mount["mountPath"]].mkdir(parents=True, exist_ok=True)
        return found

    def _folder(self, pod: Manifest, volume: Manifest) -> Path:
        own = self.root / "pods" / pod["metadata"]["uid"] / volume["name"]
        makers: Mapping[str, Callable[[Manifest, Path], Path]] = {
            "emptyDir": lambda _, folder: folder,
            "hostPath": self._host_folder,
            "persistentVolumeClaim": lambda source, _: self._claimed(pod, source),
            "configMap": lambda source, folder: self._filled(pod, CONFIG_MAPS, source, folder),
            "secret": lambda source, folder: self._filled(pod, SECRETS, source, folder),
        }
        kind = next((one for one in makers if one in volume), None)
        if kind is None:
            raise NotReady(f"the double has no volumes such as {volume['name']}")
        folder = makers[kind](volume[kind] or {}, own)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _claimed(self, pod: Manifest, source: Manifest) -> Path:
        namespace, name = str(pod["metadata"]["namespace"]), str(source["claimName"])
        if self.store.find(VOLUME_CLAIMS, (namespace, name)) is None:
            raise NotReady(f'persistentvolumeclaim "{name}" not found')
        return self.root / "claims" / namespace / name

    def _host_folder(self, source: Manifest, _own: Path) -> Path:
        folder = self.root / "host" / str(source["path"]).lstrip("/")
        if source.get("type") == "Directory" and not folder.is_dir():
            raise NotReady(f"hostPath type check failed: {source['path']} is not a directory")
        return folder

    def _filled(self, pod: Manifest, kind: Kind, source: Manifest, folder: Path) -> Path:
        data = self._data(kind, pod, source) or {}
        for item in source.get("items") or [{"key": key, "path": key} for key in data]:
            path = folder / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[item["key"]])
        return folder


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, if it has one, and `$$` a dollar."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def mapped(text: str, mounts: Mapping[str, Path]) -> str:
    """The text with the folders of mounted paths in their place."""
    if not mounts:
        return text
    paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    return re.sub(rf"(?<![\w.~/-])(?:{paths})(?![\w.-])", lambda found: str(mounts[found[0]]), text)
