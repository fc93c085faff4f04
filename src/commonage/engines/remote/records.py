"""Records of a site that survive a restart of the control plane: the last known state, and undelivered commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from commonage.domain.codec import from_json, to_json
from commonage.domain.statuses import StartRequest, Status
from commonage.link.sites.messages.engine import SiteReport
from commonage.link.sites.messages.storage import HomeSize
from commonage.link.sites.sqlite_file import SqliteFile, Statement
from commonage.ports.homes import FolderSize

T = TypeVar("T")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS statuses (id TEXT PRIMARY KEY, own INTEGER NOT NULL, status TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS commands (id TEXT PRIMARY KEY, command TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS addresses (id TEXT PRIMARY KEY, host TEXT NOT NULL, port INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS site (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS dispatched (id TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS images (id TEXT PRIMARY KEY, image TEXT NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command about one attempt, still to be delivered. `at`: when it was given. `sent`: a start may have arrived."""

    attempt_id: str
    at: float
    start: StartRequest | None = None
    sent: bool = False
    grace_s: float | None = None
    forget: bool = False

    @property
    def is_done(self) -> bool:
        return self.start is None and self.grace_s is None and not self.forget


@dataclass(frozen=True, slots=True)
class Contact:
    at: float


@dataclass(frozen=True, slots=True)
class ClockOffset:
    seconds: float


@dataclass(frozen=True, slots=True)
class Warned:
    """The number of the last device warning that was received."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """The sizes of homes and of folders of volumes, as the site measured them last."""

    homes: tuple[HomeSize, ...] = ()
    folders: tuple[FolderSize, ...] = ()


@dataclass(slots=True)
class Known:
    """`own`: ends that this side decided, of attempts that never reached the site.

    `dispatched`: attempts that this side asked the site to start, until they are forgotten; `images`: their images.
    """

    statuses: dict[str, Status] = field(default_factory=dict)
    own: dict[str, Status] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    addresses: dict[str, tuple[str, int]] = field(default_factory=dict)
    report: SiteReport | None = None
    contact: Contact | None = None
    clock_offset_s: float = 0.0
    dispatched: set[str] = field(default_factory=set)
    images: dict[str, str] = field(default_factory=dict)
    warned: Warned = Warned()
    stored: Stored = Stored()


class SiteRecords:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = SqliteFile(path, _SCHEMA)

    async def open(self) -> Known:
        """Raises Unavailable."""
        await self._file.open()
        known = Known()
        for attempt_id, own, text in await self._file.read("SELECT id, own, status FROM statuses"):
            (known.own if own else known.statuses)[attempt_id] = _read(Status, text)
        for attempt_id, text in await self._file.read("SELECT id, command FROM commands"):
            known.commands[attempt_id] = _read(Command, text)
        for attempt_id, host, port in await self._file.read("SELECT id, host, port FROM addresses"):
            known.addresses[attempt_id] = (host, port)
        facts = dict(await self._file.read("SELECT key, value FROM site"))
        known.report = _read(SiteReport, facts["report"]) if "report" in facts else None
        known.contact = _read(Contact, facts["contact"]) if "contact" in facts else None
        known.clock_offset_s = _read(ClockOffset, facts["clock"]).seconds if "clock" in facts else 0.0
        known.dispatched = {attempt_id for (attempt_id,) in await self._file.read("SELECT id FROM dispatched")}
        known.images = dict(await self._file.read("SELECT id, image FROM images"))
        known.warned = _read(Warned, facts["warned"]) if "warned" in facts else Warned()
        known.stored = _read(Stored, facts["stored"]) if "stored" in facts else Stored()
        return known

    async def close(self) -> None:
        await self._file.close()

    async def delete(self) -> None:
        """The file must be closed."""
        for suffix in ("", "-wal", "-shm"):
            await asyncio.to_thread(self._path.with_name(self._path.name + suffix).unlink, missing_ok=True)

    async def keep_command(self, command: Command) -> None:
        """Durable when this returns, with everything stored before. Raises Unavailable."""
        dispatched = [_upsert("dispatched (id)", command.attempt_id)] if command.start is not None else []
        if command.start is not None and (image := command.start.environment.image):
            dispatched.append(_upsert("images (id, image)", command.attempt_id, image))
        await self._file.write(_command(command), *dispatched)

    async def keep_adopted(self, adopted: Iterable[Status]) -> None:
        """Durable when this returns. Raises Unavailable."""
        statements: list[Statement] = []
        for one in adopted:
            statements.append(_upsert("statuses (id, own, status)", one.attempt_id, 0, _text(one)))
            statements.append(_upsert("dispatched (id)", one.attempt_id))
        await self._file.write(*statements)

    def note_delivered(self, rest: Command) -> None:
        """`rest` is left to deliver. Until that is written, a restart delivers the whole command again."""
        self._file.post(_command(rest))

    async def keep_warned(self, warned: Warned) -> None:
        """Durable when this returns. Raises Unavailable."""
        await self._file.write(_upsert("site (key, value)", "warned", _text(warned)))

    def keep_statuses(self, changed: Iterable[Status], removed: Iterable[str], *, own: bool = False) -> None:
        self._file.post(
            *(_upsert("statuses (id, own, status)", one.attempt_id, int(own), _text(one)) for one in changed),
            *(("DELETE FROM statuses WHERE id = ?", (one,)) for one in removed),
        )

    def forget(self, attempt_id: str) -> None:
        self._file.post(
            ("DELETE FROM statuses WHERE id = ?", (attempt_id,)),
            ("DELETE FROM dispatched WHERE id = ?", (attempt_id,)),
            ("DELETE FROM images WHERE id = ?", (attempt_id,)),
        )

    def keep_address(self, attempt_id: str, host: str, port: int) -> None:
        self._file.post(_upsert("addresses (id, host, port)", attempt_id, host, port))

    def drop_address(self, attempt_id: str) -> None:
        self._file.post(("DELETE FROM addresses WHERE id = ?", (attempt_id,)))

    def keep_report(self, report: SiteReport) -> None:
        self._file.post(_upsert("site (key, value)", "report", _text(report)))

    def keep_clock_offset(self, seconds: float) -> None:
        self._file.post(_upsert("site (key, value)", "clock", _text(ClockOffset(seconds))))

    def keep_stored(self, stored: Stored) -> None:
        self._file.post(_upsert("site (key, value)", "stored", _text(stored)))

    def keep_contact(self, at: float) -> None:
        self._file.post(_upsert("site (key, value)", "contact", _text(Contact(at))))


def _command(command: Command) -> Statement:
    if command.is_done:
        return "DELETE FROM commands WHERE id = ?", (command.attempt_id,)
    return _upsert("commands (id, command)", command.attempt_id, _text(command))


def _upsert(columns: str, *values: Any) -> Statement:
    places = ", ".join("?" * len(values))
    return f"INSERT OR REPLACE INTO {columns} VALUES ({places})", values  # noqa: S608 - columns are literals of this file


def _text(value: object) -> str:
    return json.dumps(to_json(value), separators=(",", ":"))


def _read(kind: type[T], text: str) -> T:
    return from_json(kind, json.loads(text), ignore_unknown=True)
