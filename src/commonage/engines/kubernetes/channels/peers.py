"""The addresses that may connect to the relays of a cluster: those of the installation's Pods, and of nodes.

A cluster may replace the address of a Pod with that of its node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from commonage.engines.kubernetes.manifest import Manifest, has_ended


class Peers:
    """Objects by uid. The engine puts them in as they change, so that `in` is one lookup."""

    def __init__(self) -> None:
        self._of: dict[str, Collection[str]] = {}
        self._count: Counter[str] = Counter()

    def __contains__(self, address: object) -> bool:
        return address in self._count

    def put_pod(self, pod: Manifest) -> None:
        """A Pod of the installation. The cluster may reuse the address of a Pod that has ended."""
        address = (pod.get("status") or {}).get("podIP")
        self._put(pod, (address,) if address and not has_ended(pod) else ())

    def put_node(self, node: Manifest) -> None:
        self._put(node, [one["address"] for one in (node.get("status") or {}).get("addresses") or ()])

    def remove(self, manifest: Manifest) -> None:
        self._put(manifest, ())

    def _put(self, manifest: Manifest, addresses: Collection[str]) -> None:
        uid = manifest["metadata"]["uid"]
        for address in self._of.pop(uid, ()):
            self._count[address] -= 1
            if not self._count[address]:
                del self._count[address]
        if addresses:
            self._of[uid] = addresses
            self._count.update(addresses)
