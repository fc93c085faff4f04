"""The base of reasons: a stable code, which is the name of the class, with typed parameters.

A reason says why something waits, was refused, started or ended, and what is wrong with a node or a GPU. It holds no
sentence: `messages` makes those, last. `codec` writes a reason as `{"code": …, "params": {…}}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, dataclass_transform

REASONS: dict[str, type[Reason]] = {}
"""Every code. `commonage.domain.reasons` imports all families, so import this from there."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True)
class Reason:
    """The base of all codes. A subclass becomes an immutable dataclass with keyword arguments, and is registered.

    Parameters are plain values, enums, tuples, dataclasses of these, or reasons (a cause). Their names carry the unit.
    The docstring of a code is its meaning in the reference. An `abstract` subclass holds shared parameters.

    `never_ran`: an attempt that ends for this reason before its start was seen certainly never ran. It may run again,
    however often.
    """

    never_ran: ClassVar[bool] = False

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        if abstract:
            return
        if cls.__name__ in REASONS:
            raise TypeError(f"the code {cls.__name__} is declared twice")
        REASONS[cls.__name__] = cls

    @property
    def code(self) -> str:
        """Part of the API and of the store: a code is never renamed in a release."""
        return type(self).__name__
