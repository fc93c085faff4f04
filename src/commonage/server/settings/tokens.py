"""The settings of tokens: a part of `settings`' table."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import Seconds

_A_MINUTE_S = 60


class TokenSettings(BaseModel):
    """How long users' tokens last."""

    token_lifetime: Annotated[Seconds, Field(ge=_A_MINUTE_S)] = setting(
        90 * 24 * 3600,
        "The longest that a user's token lasts, and how long one lasts if nothing shorter is asked for. The token of a "
        "session lasts as long as the session.",
        Row("like 30d", "People"),
    )
