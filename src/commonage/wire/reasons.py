"""Reasons and problem documents: stable codes with parameters, and text for people."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ReasonOut(BaseModel):
    """Why something waits, was refused or ended. `code` is stable and listed in docs/reference/reasons.md."""

    code: str
    params: dict[str, Any] = Field(description="Parameters of this code; their names contain the unit.")
    message: str = Field(description="Text for people. It may change at any time: programs read code and params.")


class Problem(BaseModel):
    """A problem document (RFC 9457). `code` is stable; `detail` says what happened, why, and what to do next."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    retryable: bool = False
    reason: ReasonOut | None = Field(None, description="The same as code and parameters, if the error has a reason.")
    errors: list[dict[str, Any]] | None = None
