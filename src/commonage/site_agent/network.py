"""Keeps the control plane's ports and registry, which each link announces: the engine needs them at the next start."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.files.atomic import write_file
from commonage.link.sites.messages.engine import SiteNetwork

_log = logging.getLogger(__name__)


class KeptNetwork:
    """In the file `network.json` of the agent's folder. Blocks briefly."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "network.json"

    def read(self) -> SiteNetwork | None:
        with suppress(OSError, ValueError, Unreadable):
            return from_json(SiteNetwork, json.loads(self._file.read_text(encoding="ascii")), ignore_unknown=True)
        return None

    def keep(self, network: SiteNetwork) -> None:
        if network == self.read():
            return
        try:
            write_file(self._file, json.dumps(to_json(network)), 0o600)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._file, error.strerror or error)
