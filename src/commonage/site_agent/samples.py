"""Samples of an outage: measured while the control plane does not, kept on disk within a limit, and sent afterwards."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence

from commonage.domain.codec import from_json, to_json
from commonage.domain.errors import Unavailable
from commonage.domain.statuses import Measurement
from commonage.link.sites.engine_messages import Samples
from commonage.link.sites.sqlite_file import SqliteFile
from commonage.ports.metrics import Sample

_log = logging.getLogger(__name__)
SCHEMA = ("CREATE TABLE IF NOT EXISTS samples (id INTEGER PRIMARY KEY AUTOINCREMENT, round TEXT, size INTEGER)",)


class KeptSamples:
    """The oldest rounds go first when all of them take more than `max_bytes`; `dropped` counts those samples."""

    def __init__(self, file: SqliteFile, max_bytes: int) -> None:
        self._file, self._max_bytes = file, max_bytes
        self._before: dict[str, tuple[float, float]] = {}
        self.dropped = 0

    def of(self, measurements: Sequence[Measurement], now: float) -> Samples:
        """The samples of attempts, as the control plane makes them. The first CPU measurement of each gives none."""
        found = []
        for one in measurements:
            subject, before = f"attempt:{one.attempt_id}", self._before.get(one.attempt_id)
            if before is not None and now > before[0]:
                found.append(Sample("cpu_cores", subject, now, max(0.0, (one.cpu_s - before[1]) / (now - before[0]))))
            found.append(Sample("memory_mib", subject, now, float(one.memory_mib)))
        self._before = {one.attempt_id: (now, one.cpu_s) for one in measurements}
        return Samples(tuple(found))

    async def keep(self, round_: Samples) -> None:
        if not round_.samples:
            return
        text = json.dumps(to_json(round_), separators=(",", ":"))
        insert = ("INSERT INTO samples (round, size) VALUES (?, ?)", (text, len(text)))
        try:
            await self._file.write(insert)
        except Unavailable:  # the disk is full
            if not await self.make_room():
                raise
            await self._file.write(insert)
        [(total,)] = await self._file.read("SELECT coalesce(sum(size), 0) FROM samples")
        while total > self._max_bytes:
            [(oldest, text, size)] = await self._file.read("SELECT id, round, size FROM samples ORDER BY id LIMIT 1")
            await self._file.write(("DELETE FROM samples WHERE id = ?", (oldest,)))
            total -= size
            self.dropped += len(_read(text).samples)

    async def make_room(self) -> bool:
        """Drop the oldest half: the disk is full, and start requests and newer samples need its space.

        False if there are none. Raises Unavailable.
        """
        [(count,)] = await self._file.read("SELECT count(*) FROM samples")
        oldest = await self._file.read("SELECT id, round FROM samples ORDER BY id LIMIT ?", ((count + 1) // 2,))
        if not oldest:
            return False
        await self._file.write(("DELETE FROM samples WHERE id <= ?", (oldest[-1][0],)))
        self.dropped += sum(len(_read(text).samples) for _, text in oldest)
        return True

    async def deliver(self, store: Callable[[Samples], Awaitable[object]]) -> None:
        """Send all rounds in their order; each is deleted once `store` has returned. Raises what `store` raises."""
        while rows := await self._file.read("SELECT id, round FROM samples ORDER BY id LIMIT 50"):
            await store(Samples(tuple(sample for _, text in rows for sample in _read(text).samples)))
            await self._file.write(("DELETE FROM samples WHERE id <= ?", (rows[-1][0],)))


def _read(text: str) -> Samples:
    return from_json(Samples, json.loads(text), ignore_unknown=True)
