"""The rules of the API server: what a request does to the objects. No HTTP; used by the server's double."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.fakes.kubernetes.patches import applied, leaves, merge_patched, strategic_patched
from commonage.testing.fakes.kubernetes.store import (
    DEVICE_CLAIMS,
    NAMESPACES,
    PODS,
    QUOTAS,
    ApiError,
    Key,
    Kind,
    Store,
    check_precondition,
    key_of,
    now,
)

Admission = Callable[[Kind, Manifest], str]
"""Returns why an object may not be created; empty if it may."""
_ENDED = ("Succeeded", "Failed")
_DEFAULT_GRACE_S = 30
_IMMUTABLE = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class Api:
    """`admissions` are asked in order, before quotas."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._applied: dict[tuple[str, str], Manifest] = {}  # by uid and manager: what it applied last
        self.admissions: list[Admission] = []

    # --- creating and changing ------------------------------------------------------------------------------------

    def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        key = key_of(manifest)
        if kind.is_namespaced:
            self._store.get(NAMESPACES, ("", key[0]))
        self._admit(kind, manifest)
        made = manifest
        if kind is PODS:
            made = copy.deepcopy(manifest)
            made["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
            spec = made["spec"]
            spec.setdefault("restartPolicy", "Always")
            spec.setdefault("terminationGracePeriodSeconds", _DEFAULT_GRACE_S)
            if any((one.get("resources") or {}) for one in spec["containers"]):
                made["status"]["qosClass"] = "Burstable"
        if kind is QUOTAS:
            made = manifest | {"status": {"hard": manifest["spec"]["hard"]}}
        return self._store.create(kind, made)

    def _admit(self, kind: Kind, manifest: Manifest) -> None:
        namespace, name = key_of(manifest)
        for admission in self.admissions:
            if why := admission(kind, manifest):
                raise ApiError(403, "Forbidden", f'{kind.plural} "{name}" is forbidden: {why}')
        if kind is not PODS:
            return
        used = sum(pod["status"]["phase"] not in _ENDED for pod in self._store.all(PODS, namespace))
        for quota in self._store.all(QUOTAS, namespace):
            hard = quota["spec"]["hard"].get("pods")
            if hard is not None and used >= int(hard):
                told = f"requested: pods=1, used: pods={used}, limited: pods={hard}"
                raise ApiError(
                    403,
                    "Forbidden",
                    f'pods "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {told}',
                )

    def apply(self, kind: Kind, key: Key, wanted: Manifest, manager: str, *, force: bool) -> tuple[Manifest, bool]:
        """The object, and whether it was created."""
        found = self._store.find(kind, key)
        if found is None:
            made = self.create(kind, wanted)
            self._applied[made["metadata"]["uid"], manager] = copy.deepcopy(wanted)
            return made, True
        uid = found["metadata"]["uid"]
        if not force:
            self._check_conflicts(kind, found, wanted, manager)
        changed = applied(found, wanted, self._applied.get((uid, manager)))
        self._applied[uid, manager] = copy.deepcopy(wanted)
        return self._update(kind, found, changed), False

    def _check_conflicts(self, kind: Kind, found: Manifest, wanted: Manifest, manager: str) -> None:
        mine = dict(leaves(wanted))
        for (uid, other), theirs in self._applied.items():
            if uid != found["metadata"]["uid"] or other == manager:
                continue
            conflicts = [path for path, value in leaves(theirs) if path in mine and mine[path] != value]
            if conflicts:
                count = f"{len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}"
                told = f'conflict with "{other}": .{conflicts[0]}'
                if len(conflicts) > 1:
                    told = f'conflicts with "{other}":\n' + "\n".join(f"- .{path}" for path in conflicts)
                raise ApiError(409, "Conflict", f"Apply failed with {count}: {told}")

    def patch(self, kind: Kind, key: Key, patch: Manifest, *, strategic: bool, status: bool = False) -> Manifest:
        found = self._store.get(kind, key)
        changed = (strategic_patched if strategic else merge_patched)(found, patch)
        if status:
            return self._store.update(kind, found | {"status": changed.get("status", {})})
        return self._update(kind, found, changed)

    def _update(self, kind: Kind, found: Manifest, changed: Manifest) -> Manifest:
        """Update all but the status, which has another writer. Raises ApiError for immutable fields."""
        if "status" in found:
            changed = changed | {"status": found["status"]}
        name = found["metadata"]["name"]
        if kind is PODS and _fixed(found) != _fixed(changed):
            raise ApiError(422, "Invalid", f'Pod "{name}" is invalid: {_IMMUTABLE}')
        if kind is DEVICE_CLAIMS and found["spec"] != changed["spec"]:
            raise ApiError(422, "Invalid", f'ResourceClaim "{name}" is invalid: spec: field is immutable')
        if found.get("immutable") and found.get("data") != changed.get("data"):
            told = "data: Forbidden: field is immutable when `immutable` is set"
            raise ApiError(422, "Invalid", f'{kind.name} "{name}" is invalid: {told}')
        return self._store.update(kind, changed)

    # --- deleting -------------------------------------------------------------------------------------------------

    def delete(self, kind: Kind, key: Key, options: Manifest) -> Manifest:
        """The object as it is then; a bound Pod that has not ended stays until its kubelet has ended it."""
        found = self._store.get(kind, key)
        for name, wanted in (options.get("preconditions") or {}).items():
            check_precondition(kind, found, name, wanted)
        if kind is not PODS:
            self._store.remove(kind, key)
            return found
        spec, metadata = found["spec"], found["metadata"]
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = spec["terminationGracePeriodSeconds"]
        if not spec.get("nodeName") or found["status"]["phase"] in _ENDED:
            grace = 0
        if grace <= 0:
            self._store.remove(kind, key)
            return found
        if grace >= metadata.get("deletionGracePeriodSeconds", grace + 1):
            return found
        deletion = {"deletionTimestamp": metadata.get("deletionTimestamp", now()), "deletionGracePeriodSeconds": grace}
        return self._store.update(kind, found | {"metadata": metadata | deletion})


def _fixed(pod: Manifest) -> Any:
    """The part of a Pod's spec that never changes."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("schedulingGates", "tolerations")}
    containers = [{**one, "image": ""} for one in spec["containers"]]
    return spec | {"containers": containers, "activeDeadlineSeconds": None}
