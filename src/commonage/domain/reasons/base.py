"""What a reason is: a stable code, which is the name of its class, with typed parameters.

A reason says why something waits, was refused, started or ended, and what is wrong with a node or a GPU. It holds no
sentence: `messages` makes those, last. `codec` writes a reason as `{"code": …, "params": {…}}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform


@dataclass(frozen=True, slots=True)
class Reason:
    """The base of all codes. The docstring of a code says what it means; the reference shows it."""

    @property
    def code(self) -> str:
        """Part of the API and of the store: a code is never renamed in a release."""
        return type(self).__name__


R = TypeVar("R", bound=Reason)
REASONS: dict[str, type[Reason]] = {}
"""Every code there is. `commonage.domain.reasons` imports all families, so import this from there."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def reason(cls: type[R]) -> type[R]:
    """Declare a code: an immutable dataclass with keyword arguments, in the registry.

    Parameters are plain values, enums, tuples, dataclasses of these, or reasons (a cause). Their names carry the unit.
    """
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    if made.__name__ in REASONS:
        raise TypeError(f"the code {made.__name__} is declared twice")
    REASONS[made.__name__] = made
    return made
