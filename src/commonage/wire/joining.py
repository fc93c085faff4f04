"""Join tokens, user data for clouds, and the files that a machine needs to join as a node over SSH."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from commonage.wire.types import PlainText, Strict


class JoinTokenIn(Strict):
    """Properties of the new join token."""

    for_s: Annotated[int, Field(ge=60, le=604_800, description="Lifetime in seconds.")] = 3600
    cloud_init: Annotated[bool, Field(description="Also return user data (cloud-init) for machines of a cloud.")] = (
        False
    )
    options: Annotated[
        list[Annotated[PlainText, Field(max_length=1000)]],
        Field(default_factory=list, max_length=40, description="Options of the join script in that user data."),
    ]


class JoinTokenOut(BaseModel):
    """A join token; it is shown only once."""

    token: str
    expires_at: float
    url: str = Field(description="URL of the join script.")
    script_sha256: str = Field(description="SHA-256 of the join script, as `sha256sum` prints it.")
    command: str = Field(
        description="Command that downloads the script, verifies its SHA-256 and runs it. The script asks for the "
        "token; you can append options."
    )
    user_data: str | None = None


class JoinKitOut(BaseModel):
    """The files that a machine needs to join over SSH."""

    script: str
    script_sha256: str
    bundle: str = Field(description="The packed program, in base64.")


class DoneOut(BaseModel):
    """The steps that were taken, one sentence each."""

    done: list[str]
