"""The settings of how the server is divided: a component of `settings`' table."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from commonage.server.settings.table import Row, setting
from commonage.wire.docs import docs_page


class ComponentSettings(BaseModel):
    """What runs with the control plane, and what apart from it."""

    children: Literal["own", "external"] = setting(
        "own",
        "JupyterHub and the proxy: `own` children of the control plane, or `apart`, each run by `commonage component` in "  # noqa: E501
        f"a container of its own ({docs_page('operate/deploy')}).",
        Row("own or apart", "Where"),
    )
