"""Paths of the documentation that the server itself serves, for messages and pages that refer to it."""

from __future__ import annotations

from commonage.wire.hub import PORTAL_PATH

DOCS_PATH = f"{PORTAL_PATH}docs/"


def docs_page(page: str) -> str:
    """The path of a page such as `operate/swarm#shared-folder`; tests/shape checks that it exists."""
    name, _, anchor = page.partition("#")
    return f"{DOCS_PATH}{name}.html" + (f"#{anchor}" if anchor else "")
