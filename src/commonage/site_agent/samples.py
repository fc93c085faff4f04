"""Samples of an outage: measured while the control plane does not, kept on disk within a limit, and sent afterwards."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace

from commonage.control.usage.attribution import MeasurementRound, attribute, merge_rounds
from commonage.control.usage.samples import AttemptSamples, of_attempts_on_devices, of_devices, of_node
from commonage.domain.codec import from_json, to_json
from commonage.domain.nodes import Allocation, NodeKey, NodeReport
from commonage.link.sites.messages.engine import Samples, SiteMeasured
from commonage.link.sites.sqlite_file import SqliteFile

ON_FULL = "DELETE FROM samples WHERE id <= (SELECT (min(id) + max(id)) / 2 FROM samples)"
"""The oldest half: on a full disk, start requests, ends and newer samples need the space."""
_log = logging.getLogger(__name__)
_THIS_SITE = ""  # the control plane adds the name
SCHEMA = ("CREATE TABLE IF NOT EXISTS samples (id INTEGER PRIMARY KEY AUTOINCREMENT, round TEXT, size INTEGER)",)


class KeptSamples:
    """The oldest rounds go first when all of them take more than `max_bytes`; `dropped` counts those samples."""

    def __init__(self, file: SqliteFile, max_bytes: int) -> None:
        self._file, self._max_bytes = file, max_bytes
        self._of_attempts = AttemptSamples()
        self.dropped = 0

    def of(
        self, measured: SiteMeasured, allocated: Iterable[Allocation], nodes: Collection[NodeReport], now: float
    ) -> Samples:
        """The samples of attempts, devices and nodes, as the control plane makes them."""
        of_nodes = (attribute(_THIS_SITE, one.samples, one.owners, math.inf) for one in measured.devices)
        round_ = merge_rounds(MeasurementRound(now), of_nodes)
        here = [replace(one, site=_THIS_SITE) for one in allocated]
        found = self._of_attempts.of(measured.measurements, now)
        found += of_devices(round_, now) + of_attempts_on_devices(round_, here, now)
        for node in nodes:
            found += of_node(NodeKey(_THIS_SITE, node.name), node, now, is_measured=not node.gone)
        return Samples(tuple(found))

    async def keep(self, round_: Samples) -> None:
        if not round_.samples:
            return
        text = json.dumps(to_json(round_), separators=(",", ":"))
        await self._file.write(("INSERT INTO samples (round, size) VALUES (?, ?)", (text, len(text))))
        [(total,)] = await self._file.read("SELECT coalesce(sum(size), 0) FROM samples")
        while total > self._max_bytes:
            [(oldest, text, size)] = await self._file.read("SELECT id, round, size FROM samples ORDER BY id LIMIT 1")
            await self._file.write(("DELETE FROM samples WHERE id = ?", (oldest,)))
            total -= size
            self.dropped += len(_read(text).samples)

    async def deliver(self, store: Callable[[Samples], Awaitable[object]]) -> None:
        """Send all rounds in their order; each is deleted once `store` has returned. Raises what `store` raises."""
        while rows := await self._file.read("SELECT id, round FROM samples ORDER BY id LIMIT 50"):
            await store(Samples(tuple(sample for _, text in rows for sample in _read(text).samples)))
            await self._file.write(("DELETE FROM samples WHERE id <= ?", (rows[-1][0],)))


def _read(text: str) -> Samples:
    return from_json(Samples, json.loads(text), ignore_unknown=True)
