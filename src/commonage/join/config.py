"""The terms that a node receives when it joins, as both sides write and read them. Of the standard library alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MARK_FILE = ".commonage-site"
"""File in the shared folder by which a node recognises the site's folder."""


class JoinConfigError(ValueError):
    """The terms are not valid; the message says why."""


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """Everything that a node needs to know of the site it joins, including secrets.

    `authority` is the site's own certificate (PEM); `agents` are HOST:PORT that its agent dials; `managers` are
    HOST:PORT of the Swarm's managers, `swarm_token` lets it in as a worker. `daemon` are required values in Docker's
    settings, `agent` the site's values in its agents' settings (`commonage.agent.config`). `registry` is HOST:PORT or
    empty. `shared_dir` is the folder that all nodes see, `mark` the content of its MARK_FILE. `images` are pulled while
    joining. `now` is the control plane's clock (unix seconds).
    """

    site: str
    authority: str
    agents: tuple[str, ...]
    managers: tuple[str, ...]
    swarm_token: str
    shared_dir: str
    mark: str
    now: float
    registry: str = ""
    images: tuple[str, ...] = ()
    daemon: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON object that is sent."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, said: Any) -> Self:
        """Read the JSON object. Fields that this version does not know are ignored. Raises JoinConfigError."""
        if not isinstance(said, dict):
            raise JoinConfigError("the site's terms are no JSON object")
        known = {one.name: one for one in dataclasses.fields(cls)}
        kept = {name: value for name, value in said.items() if name in known}
        missing = [
            name
            for name, one in known.items()
            if name not in kept and one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise JoinConfigError(f"the site's terms lack {', '.join(missing)}")
        for name in ("agents", "managers", "images"):
            if name in kept:
                kept[name] = _texts(name, kept[name])
        for name in ("site", "authority", "swarm_token", "shared_dir", "mark", "registry"):
            if not isinstance(kept.get(name, ""), str):
                raise JoinConfigError(f"{name} of the site's terms is no text: {kept[name]!r}")
        if not all(isinstance(kept.get(name, {}), dict) for name in ("daemon", "agent")):
            raise JoinConfigError("the site's terms have settings of Docker or of the agent that cannot be read")
        if not isinstance(kept["now"], int | float):
            raise JoinConfigError(f"the clock in the site's terms is no number: {kept['now']!r}")
        return cls(**kept)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise JoinConfigError(f"{name} of the site's terms is no list of texts: {value!r}")
    return tuple(value)
