"""Findings of `commonage doctor` from descriptions of nodes."""

from __future__ import annotations

from typing import Any

from commonage.engines.kubernetes.doctor import nodes_without_user_namespaces


def node(name: str, handlers: dict[str, bool]) -> dict[str, Any]:
    found = [{"name": handler, "features": {"userNamespaces": has}} for handler, has in handlers.items()]
    return {"metadata": {"name": name}, "status": {"runtimeHandlers": found} if found else {}}


def test_names_nodes_whose_default_runtime_says_that_it_has_no_user_namespaces() -> None:
    nodes = [node("b", {"": False}), node("a", {"": False, "kata": True}), node("c", {"": True}), node("old", {})]

    assert nodes_without_user_namespaces(nodes) == ["a", "b"]
