"""The join config: what a node receives when it joins, as both sides write and read it. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MARK_FILE = ".commonage-site"
"""File in the shared folder by which a node recognises the site's folder."""


class JoinConfigError(ValueError):
    """The join config is not valid; the message says why."""


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
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read the JSON object. Fields that this version does not know are ignored. Raises JoinConfigError."""
        if not isinstance(content, dict):
            raise JoinConfigError("the join config of the site is not a JSON object")
        known = {one.name: one for one in dataclasses.fields(cls)}
        kept = {name: value for name, value in content.items() if name in known}
        missing = [
            name
            for name, one in known.items()
            if name not in kept and one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise JoinConfigError(f"the join config of the site lacks {', '.join(missing)}")
        for name in ("agents", "managers", "images"):
            if name in kept:
                kept[name] = _texts(name, kept[name])
        for name in ("site", "authority", "swarm_token", "shared_dir", "mark", "registry"):
            if not isinstance(kept.get(name, ""), str):
                raise JoinConfigError(f"{name} in the join config is not a text: {kept[name]!r}")
        if not all(isinstance(kept.get(name, {}), dict) for name in ("daemon", "agent")):
            raise JoinConfigError("daemon and agent in the join config must be objects")
        if not isinstance(kept["now"], int | float):
            raise JoinConfigError(f"now in the join config is not a number: {kept['now']!r}")
        return cls(**kept)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise JoinConfigError(f"{name} in the join config is not a list of texts: {value!r}")
    return tuple(value)
