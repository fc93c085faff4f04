"""Findings of `commonage doctor` from descriptions of nodes."""

from __future__ import annotations

from typing import Any

from commonage.engines.kubernetes.doctor import nodes_without_user_namespaces, rights_of
from commonage.engines.settings import KubernetesSettings


def node(name: str, handlers: dict[str, bool]) -> dict[str, Any]:
    found = [{"name": handler, "features": {"userNamespaces": has}} for handler, has in handlers.items()]
    return {"metadata": {"name": name}, "status": {"runtimeHandlers": found} if found else {}}


def test_names_nodes_whose_default_runtime_says_that_it_has_no_user_namespaces() -> None:
    nodes = [node("b", {"": False}), node("a", {"": False, "kata": True}), node("c", {"": True}), node("old", {})]

    assert nodes_without_user_namespaces(nodes) == ["a", "b"]


def test_asks_for_the_rights_to_keep_namespaces_only_where_it_keeps_them() -> None:
    kept, single = (rights_of(KubernetesSettings(namespaces=mode)) for mode in ("kept", "single"))  # type: ignore[arg-type]
    keeping = {("patch", "", "namespaces", False), ("bind", "rbac.authorization.k8s.io", "clusterroles", False)}

    assert keeping <= set(kept)
    assert not keeping & set(single)
    assert ("create", "", "pods", True) in single
    assert not [one for one in kept if one[3]]
