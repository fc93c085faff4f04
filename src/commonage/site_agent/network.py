"""What the control plane says of itself on each link, kept for the next start: the engine has to know it first."""

from __future__ import annotations

from pathlib import Path

from commonage.link.sites.messages.engine import SiteNetwork
from commonage.site_agent.kept_message import KeptMessage


class KeptNetwork(KeptMessage[SiteNetwork]):
    """In the file `network.json` of the agent's folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SiteNetwork, folder / "network.json")
