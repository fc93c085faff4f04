"""Field types of the messages, and the base class of requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from commonage.units import MAX_DURATION_S

MAX_INTEGER = 2**53 - 1  # the largest integer that every database and JSON reader stores exactly

# Text that databases and terminals accept: no control characters (pydantic itself refuses lone surrogates).
PlainText = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]
Argument = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=131_072)]
Name = Annotated[PlainText, Field(max_length=128)]
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")]
LabelValue = Annotated[PlainText, StringConstraints(min_length=1, max_length=128)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Strength = Annotated[
    str,
    Field(
        description="Of the isolation level: hard, hard-for-each-process, soft (a program can switch it off), "
        "accounted (added up by the cluster, not enforced), or cooperative."
    ),
]
Seconds = Annotated[int, Field(strict=True, ge=0, le=MAX_DURATION_S)]
Mib = Annotated[int, Field(strict=True, ge=1, le=1024**3)]  # at most a pebibyte: more than any node has
# As text with a unit or as a number; `domain.requests` parses it.
Cpus = Annotated[str, Field(max_length=32)] | float
Gpus = Annotated[str, Field(max_length=256)] | float
# Unix seconds, up to the year 9999.
Instant = Annotated[float, Field(ge=0, le=253_402_300_799)]


class Strict(BaseModel):
    """Base of requests: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
