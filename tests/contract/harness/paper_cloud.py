"""A cloud of the tests' own, by libcloud's driver for trying things: its nodes are files, with their user data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from libcloud.compute.base import Node
from libcloud.compute.drivers.dummy import DummyNodeDriver
from libcloud.compute.types import NodeState


class Paper(DummyNodeDriver):
    """A file in `folder` is a rented machine. The test boots it."""

    def __init__(self, folder: str) -> None:
        super().__init__("paper")
        self._folder = Path(folder)

    def _machine(self, name: str) -> Node:
        return Node(name, name, NodeState.RUNNING, [], [], self)

    def list_nodes(self) -> list[Node]:
        return [self._machine(one.stem) for one in self._folder.glob("*.yaml")]

    def create_node(self, name: str, size: Any, image: Any, ex_userdata: str, location: Any = None) -> Node:  # type: ignore[override]  # as the drivers of providers do
        written = self._folder / f"{name}.part"
        written.write_text(ex_userdata)
        written.rename(self._folder / f"{name}.yaml")
        return self._machine(name)

    def destroy_node(self, node: Node) -> bool:
        (self._folder / f"{node.name}.yaml").unlink()
        return True
