"""The apps that sessions may offer, from the file that sessions read themselves. Read by bootstrap."""

from __future__ import annotations

import json
from functools import cache

from commonage.domain.apps import App
from commonage.files.injected import JUPYTER


@cache
def known_apps() -> tuple[App, ...]:
    described = json.loads((JUPYTER / "apps.json").read_text(encoding="utf-8"))
    return tuple(App(one["name"], one["title"], one["path"]) for one in described)
