"""The fields about idle sessions, which tenants, environments and settings share."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from commonage.domain.idle import IdleAction, IdleRule
from commonage.resources.fields import Entry, SecondsOrZero

MAX_AGE = "Longest time that its sessions may run. It is the time limit of sessions that request none. 0: no limit."


class IdleEntry(Entry):
    """Limits and the action for idle sessions. A missing field is taken from a more general level."""

    after: SecondsOrZero | None = Field(
        None, description="Time without activity after which a session is idle. 0: never."
    )
    warn: SecondsOrZero | None = Field(None, description="How long before the end of `after` its owner is warned.")
    action: IdleAction | None = Field(
        None,
        description="`stop` ends the session. `release-gpu` starts it again without its GPU; a session without a GPU "
        "continues.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.after and self.warn is not None and self.warn > self.after:
            raise ValueError("idle.warn is longer than idle.after; warn later, or let sessions be idle for longer")
        return self


def idle_rule(entry: IdleEntry, max_age_s: int | None) -> IdleRule:
    return IdleRule(entry.after, entry.warn, entry.action, max_age_s)
