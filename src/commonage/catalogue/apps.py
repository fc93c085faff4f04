"""The apps that sessions may offer. Read by bootstrap."""

from __future__ import annotations

from commonage.domain.apps import App
from commonage.files.apps import described_apps


def known_apps() -> tuple[App, ...]:
    return tuple(App(one.name, one.title, one.path) for one in described_apps())
