"""Keeps the control plane's ports and registry, which each link announces: the engine needs them at the next start."""

from __future__ import annotations

from pathlib import Path

from commonage.link.sites.messages.engine import SiteNetwork
from commonage.site_agent.kept_message import KeptMessage


class KeptNetwork(KeptMessage[SiteNetwork]):
    """In the file `network.json` of the agent's folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SiteNetwork, folder / "network.json")
