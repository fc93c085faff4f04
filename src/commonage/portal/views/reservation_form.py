"""The form of a reservation: the entered values, and the reservation made from them. Pure; used by `reservations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from commonage import messages
from commonage.control.reservations import Wanted
from commonage.control.settings import ControlSettings
from commonage.control.windows import window_of, windows, zone_of
from commonage.domain.errors import InvalidInput
from commonage.domain.requests import Request, parse_cpus, parse_gpus, parse_memory

T = TypeVar("T")
FIELDS = (
    "tenant", "title", "starts_at", "ends_at", "time_zone", "count", "gpus", "cpus", "memory", "owner", "every",
    "last_day",
)  # fmt: skip
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class ReservationForm:
    """The fields as text, and their errors; the key "" holds an error of the whole form."""

    values: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> ReservationForm:
        """Read a form; unknown names are ignored."""
        return cls({name: given.get(name, "").strip()[:_LONGEST] for name in FIELDS})

    def refused(self, error: InvalidInput) -> ReservationForm:
        """A copy with an error at its field."""
        name = error.field if error.field in FIELDS else ""
        return replace(self, errors={**self.errors, name or "": messages.of_error(error)})

    def wanted(self, now: float, settings: ControlSettings) -> tuple[Wanted | None, ReservationForm]:
        """The wanted reservation, or None and the form with its errors."""
        errors: dict[str, str] = {}

        def parsed(name: str, parse: Callable[[str], T], otherwise: T) -> T:
            try:
                return parse(self.values[name]) if self.values[name] else otherwise
            except InvalidInput as error:
                errors[name] = messages.of_error(error)
                return otherwise

        request = Request(
            parsed("cpus", parse_cpus, settings.default_cpus_milli),
            parsed("memory", parse_memory, settings.default_memory_mib),
            parsed("gpus", parse_gpus, None),
        )
        count = parsed("count", _count, 1)
        try:
            wanted = self._in_windows(now, request, count)
        except InvalidInput as error:
            errors[error.field or ""] = messages.of_error(error)
            wanted = None
        return (None if errors else wanted), replace(self, errors=errors)

    def _in_windows(self, now: float, request: Request, count: int) -> Wanted:
        v = self.values
        begin, end = window_of(v["starts_at"], v["ends_at"], zone_of(v["time_zone"] or "UTC"), now)
        return Wanted(
            tenant=v["tenant"],
            windows=windows(begin, end, v["every"] or None, v["last_day"] or None),
            request=request,
            count=count,
            title=v["title"],
            owner=v["owner"] or None,
        )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 10_000:
        raise InvalidInput(f"Count must be a number from 1 to 10000, not {text[:40]!r}.", field="count")
    return int(text)
