"""Tokens and templates with which nodes join, and what the command line needs to let one join over SSH."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from commonage.wire.workloads import PlainText, Strict


class JoinTokenIn(Strict):
    """What the token is to be like."""

    for_s: Annotated[int, Field(ge=60, le=604_800, description="How many seconds it is good for.")] = 3600
    cloud_init: Annotated[bool, Field(description="Answer with user data for a cloud's node, too.")] = False
    options: Annotated[
        list[Annotated[PlainText, Field(max_length=1000)]],
        Field(default_factory=list, max_length=40, description="Options of the script, for that user data."),
    ]


class JoinTokenOut(BaseModel):
    """A token for nodes. It is shown this once."""

    token: str
    expires_at: float
    url: str = Field(description="Where nodes fetch the script.")
    script_sha256: str = Field(description="What `sha256sum` must say of it.")
    command: str = Field(
        description="Fetches the script, compares its SHA-256 and runs it; it asks for the token. Options may follow."
    )
    user_data: str | None = None


class JoinKitOut(BaseModel):
    """What is brought to a machine that joins over SSH."""

    script: str
    script_sha256: str
    bundle: str = Field(description="The packed program, in base64.")


class DoneOut(BaseModel):
    """What something came to, a sentence each."""

    done: list[str]
