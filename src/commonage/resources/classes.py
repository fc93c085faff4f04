"""The form of classes, and rosters as teachers have them: CSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from commonage.domain.classes import AtEnd, Class
from commonage.domain.errors import InvalidInput
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.resources import Document
from commonage.domain.time_zones import zone_of
from commonage.domain.windows import Window, window_of, windows
from commonage.resources.calendars import times_of_calendar
from commonage.resources.fields import Entry, Form, Mib, Milli, Seconds, SecondsOrZero, check_domain
from commonage.resources.scheduling import SubjectName

MAX_SEATS = 2000
MAX_TIMES = 200
MAX_AHEAD_S = 4 * 3600
USER = r"^[a-z0-9][a-z0-9._@+-]{0,62}$"
_USER = re.compile(USER)
_COLUMNS = ("user", "username", "user_name", "user name", "login", "name")
_SESSION_NAME = re.compile(r"[a-z](?:-?[a-z0-9])*")
Text = Annotated[str, Field(max_length=40)]


class ClassTimeEntry(Entry):
    """A meeting, once or repeatedly, in the time zone of the class."""

    starts: Annotated[str, Field(min_length=10, max_length=40)] = Field(description="Start, like 2026-11-24 14:00.")
    ends: Text = Field(description="End: 16:00 on the same day, or 2026-11-24 16:00.")
    every: Literal["day", "week"] | None = Field(None, description="Repeat every day or week, until `last_day`.")
    last_day: Text | None = Field(None, description="Last day of the repetition, like 2027-02-12.")

    def windows(self, time_zone: str) -> list[Window]:
        """Raises InvalidInput."""
        try:
            datetime.fromisoformat(self.starts.strip())
        except ValueError:
            raise InvalidInput(
                f"starts {self.starts!r} is no time; write date and time, like 2026-11-24 14:00", field="starts"
            ) from None
        begin, end = window_of(self.starts, self.ends, zone_of(time_zone), 0.0)
        if end <= begin:
            raise InvalidInput(f"the meeting of {self.starts} would end before it begins", field="ends")
        return windows(begin, end, self.every, self.last_day)


class ClassEntry(Form):
    """Students who meet at set times. Each finds a running session of the same size."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,29}$")] = Field(
        description="Name of the class, and of each student's session in it."
    )
    tenant: SubjectName = Field(description="Tenant whose quota the seats use.")
    title: Annotated[str, Field(max_length=128)] = Field("", description="Name as it is shown.")
    users: tuple[Annotated[str, Field(pattern=USER)], ...] = Field(
        (), max_length=MAX_SEATS, description="Students, by their user names in JupyterHub."
    )
    groups: tuple[SubjectName, ...] = Field(
        (), max_length=100, description="Groups of JupyterHub, such as GitHub teams, whose members are students."
    )
    seats: Annotated[int, Field(ge=1, le=MAX_SEATS)] | None = Field(
        None,
        description="Maximum number of students at once. Default: the number of `users`. Required with `groups`.",
    )
    environment: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="Environment of the sessions. Default: that of sessions in general."
    )
    gpus: Annotated[str, Field(max_length=60)] | None = Field(
        None,
        description="GPU request of each seat: 4GiB, 0.25, 1 or A100:1. Default: none.",
        coerce_numbers_to_str=True,
    )
    cpus: Milli = Field(1000, description="CPU cores of each seat.")
    memory: Mib = Field(1024, description="Memory of each seat.")
    material: Annotated[str, Field(max_length=128)] = Field(
        "", description="Volume that each session gets, with the material of the class."
    )
    times: tuple[ClassTimeEntry, ...] = Field((), max_length=MAX_TIMES, description="Meetings.")
    time_zone: Text = Field("UTC", description="Time zone of `times`: Europe/Berlin, UTC or +01:00.")
    ahead: SecondsOrZero = Field(600, description="How long before a meeting its sessions start.")
    grace: Seconds = Field(600, description="How long after a meeting its sessions stop. Students are warned before.")
    at_end: AtEnd = Field(AtEnd.STOP, description="Stop the sessions after a meeting, or keep them.")

    @model_validator(mode="after")
    def _check(self) -> ClassEntry:
        if not _SESSION_NAME.fullmatch(self.name):
            raise ValueError("the name is part of an address: a hyphen must be between letters or digits, and single")
        if self.groups and self.seats is None:
            raise ValueError("a roster with groups needs `seats`, because a group may grow")
        if not self.groups and not self.users and self.seats is None:
            raise ValueError("a class needs a roster: set `users`, or `groups` and `seats`")
        if self.seats is not None and len(self.users) > self.seats:
            raise ValueError(f"there are {self.seats} seats for {len(self.users)} users; raise `seats`")
        if self.ahead > MAX_AHEAD_S:
            raise ValueError("ahead: sessions start at most 4h before a meeting")
        check_domain(self.made)
        return self

    def made(self) -> Class:
        """Raises InvalidInput."""
        found = sorted({window for one in self.times for window in one.windows(self.time_zone)})
        for (_, ends_at), (starts_at, _) in pairwise(found):
            if starts_at < ends_at:
                raise InvalidInput("two meetings overlap; give them different times", field="times")
        if len(found) > MAX_TIMES:
            raise InvalidInput(f"{len(found)} meetings; at most {MAX_TIMES} are allowed", field="times")
        return Class(
            name=self.name,
            tenant=self.tenant,
            seats=len(self.users) if self.seats is None else self.seats,
            request=Request(self.cpus, self.memory, parse_gpus(self.gpus) if self.gpus else None),
            times=tuple(found),
            title=self.title,
            users=tuple(dict.fromkeys(self.users)),
            groups=self.groups,
            environment=self.environment,
            material=self.material,
            time_zone=self.time_zone,
            ahead_s=self.ahead,
            grace_s=self.grace,
            at_end=self.at_end,
        )


def users_of_csv(text: str) -> list[str]:
    """The user names in a CSV file: its column `user`, `username`, `login` or `name`, else the first column.

    Separators are commas, semicolons or tabs. Raises InvalidInput with the line.
    """
    rows = [row for row in _rows(text) if any(cell.strip() for cell in row[1])]
    if not rows:
        raise InvalidInput("the roster is empty; write one user name on each line", field="roster")
    header = [cell.strip().lower() for cell in rows[0][1]]
    column = next((header.index(name) for name in _COLUMNS if name in header), None)
    found: dict[str, None] = {}
    for number, row in rows if column is None else rows[1:]:
        at = column or 0
        name = row[at].strip().lower() if at < len(row) else ""
        if not _USER.fullmatch(name):
            raise InvalidInput(
                f"line {number} of the roster: {name[:60]!r} is no user name of JupyterHub. Use at most 63 letters, "
                "digits and . _ @ + -. A header names the column `user`.",
                field="roster",
            )
        found[name] = None
    if len(found) > MAX_SEATS:
        raise InvalidInput(f"the roster has {len(found)} users; at most {MAX_SEATS} are allowed", field="roster")
    return list(found)


def _rows(text: str) -> Sequence[tuple[int, list[str]]]:
    text = text.removeprefix("\ufeff")
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    try:
        reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise InvalidInput(f"the roster is no CSV file: {error}", field="roster") from None


def with_files(given: Document, roster: str | None, calendar: str | None) -> Document:
    """The document with the contents of the files. Raises InvalidInput."""
    document = dict(given)
    if roster is not None:
        document["users"] = users_of_csv(roster)
    if calendar is not None:
        zone = document.get("time_zone", "UTC")
        if not isinstance(zone, str):
            raise InvalidInput("time_zone must be text, like Europe/Berlin", field="document.time_zone")
        document["times"] = times_of_calendar(calendar, zone)
    return document
