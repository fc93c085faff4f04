"""Whole GPUs reserved against the cluster's device plugin, for modes that choose the GPU themselves.

A reservation is a Pod that requests one GPU and sleeps. The plugin then gives that GPU to no other Pod, and the Pod's
output is its uuid. Only GPUs that a reservation holds are devices of such a mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonage.domain.nodes import Device, Isolation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import GpuMemoryUnknown, GpuTimeSliced
from commonage.engines.kubernetes.gpus.feature_labels import gpu_labels
from commonage.engines.kubernetes.gpus.mode import VISIBLE, NodeObjects, granted_by_plugin, holds_devices
from commonage.engines.kubernetes.manifest import Manifest

GPU = "nvidia.com/gpu"
RESERVES = "commonage.dev/reserves"
"""Label of a reservation."""
_ANY_TAINT = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


def reservation(node: str, number: int, *, namespace: str, image: str, installation: str) -> Manifest:
    """The Pod that reserves one GPU of a node. Its first line of output is the uuid (`mode.uuids_in`).

    The engine writes that uuid to the Pod's annotation `mode.GRANTED`; until then the GPU is not offered.
    """
    program = f'echo "${VISIBLE}"; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    resources = {"cpu": "1m", "memory": "16Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"cm-gpu-{number}-{node}",
            "namespace": namespace,
            "labels": {"commonage.dev/installation": installation, RESERVES: "gpu"},
        },
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                        ]
                    }
                }
            },
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "reservation",
                    "image": image,
                    "command": ["/bin/sh", "-c", program],
                    "resources": {"requests": resources | {GPU: "1"}, "limits": resources | {GPU: "1"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                }
            ],
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [_ANY_TAINT],
        },
    }


def reserved_devices(objects: NodeObjects, isolation: Isolation) -> tuple[Device, ...]:
    """Devices whose uuid a running reservation knows. Model and memory are the node's labels'."""
    labels = gpu_labels(objects.node)
    faults: list[Reason] = []
    if labels.replicas > 1:
        faults.append(GpuTimeSliced(replicas=labels.replicas))
    if not labels.memory_mib:
        faults.append(GpuMemoryUnknown())
    uuids = sorted({uuid for pod in _reservations(objects.pods) for uuid in granted_by_plugin(pod)})
    return tuple(
        Device(
            uuid,
            index,
            labels.model,
            labels.memory_mib,
            isolation=isolation,
            faults=tuple(faults),
            driver=labels.driver,
            compute_capability=labels.compute_capability,
        )
        for index, uuid in enumerate(uuids)
    )


def _reservations(pods: Sequence[Manifest]) -> list[Manifest]:
    return [pod for pod in pods if RESERVES in pod["metadata"].get("labels", {}) and holds_devices(pod)]
