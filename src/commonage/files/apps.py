"""The apps that sessions may offer, from apps.json, which sessions read themselves. Read once."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from functools import cache

from commonage.files.injected import JUPYTER

_PROXY = "jupyter_server_proxy"


@dataclass(frozen=True, slots=True)
class DescribedApp:
    """`programs` are found on the search path of a session, or in `folders`; `module` in the Python of its server."""

    name: str
    title: str
    path: str
    programs: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    module: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of programs and modules, as jupyter_server_config.py requires them."""
        return (*self.programs, *((self.module,) if self.module else ()), *((_PROXY,) if self.programs else ()))


@cache
def described_apps() -> tuple[DescribedApp, ...]:
    return tuple(
        DescribedApp(
            one["name"],
            one["title"],
            one["path"],
            tuple(one.get("programs", ())),
            tuple(one.get("folders", ())),
            one.get("module", ""),
        )
        for one in json.loads((JUPYTER / "apps.json").read_text(encoding="utf-8"))
    )


def apps_of_environments() -> tuple[DescribedApp, ...]:
    """The apps that only some environments have."""
    return tuple(one for one in described_apps() if one.needs)


def modules() -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(name for app in apps_of_environments() for name in app.needs if name not in app.programs)
    )


def apps_in(found: Container[str]) -> tuple[str, ...]:
    """The names of the apps of which all programs and modules are in `found`."""
    return tuple(app.name for app in apps_of_environments() if all(name in found for name in app.needs))
