"""A session's reports of its activity, the notices to its owner, and extensions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.types import PlainText, Strict

_TEN_YEARS_S = 3652 * 86_400
OfferName = Literal["extend", "release-gpu"]


class ActivityIn(Strict):
    """A session's report of its activity. It gives durations instead of times, because clocks differ."""

    attempt: int = Field(ge=1, description="Number of the attempt that reports.")
    idle_s: float = Field(ge=0, le=_TEN_YEARS_S, allow_inf_nan=False, description="Seconds since the last sign of use.")
    busy: bool = Field(description="A kernel computes, or a program runs in a terminal.")
    programs: list[Annotated[PlainText, Field(max_length=64)]] = Field(
        default_factory=list, max_length=8, description="Names of running programs."
    )
    is_measured: bool = Field(True, description="False: something runs whose use cannot be measured.")


class NoticeOut(BaseModel):
    """Something that the owner of a session should know now. `offers` are what can be done about it."""

    code: str
    message: str
    offers: list[OfferName]


class ActivityOut(BaseModel):
    """The answer to a report: what to show, and the seconds until the next report."""

    notices: list[NoticeOut]
    next_s: float


class ExtendIn(Strict):
    """How long to keep a workload, from now."""

    for_s: float = Field(
        7200, gt=0, le=366 * 86_400, allow_inf_nan=False, description="Seconds from now for which it is kept at least."
    )
