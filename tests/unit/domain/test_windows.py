"""Times of reservations as people write them."""

from datetime import UTC, datetime

import pytest

from commonage.domain.errors import InvalidInput
from commonage.domain.time_zones import zone_of
from commonage.domain.windows import deadline_of, window_of, windows

NOW = datetime(2026, 11, 20, 9, 30, tzinfo=UTC).timestamp()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("starts", "ends", "zone", "window"),
    [
        ("2026-11-24 14:00", "16:00", "Europe/Berlin", ("2026-11-24T14:00+01:00", "2026-11-24T16:00+01:00")),
        ("2026-07-01 14:00", "2026-07-02 08:00", "Europe/Berlin", ("2026-07-01T12:00Z", "2026-07-02T06:00Z")),
        ("2026-11-24T14:00-05:00", "15:00", "UTC", ("2026-11-24T19:00Z", "2026-11-25T15:00Z")),
        ("22:00", "02:00", "+05:30", ("2026-11-20T22:00+05:30", "2026-11-21T02:00+05:30")),
        ("now", "12:00", "UTC", ("2026-11-20T09:30Z", "2026-11-20T12:00Z")),
        (NOW, NOW + 60, "UTC", ("2026-11-20T09:30Z", "2026-11-20T09:31Z")),
    ],
)
def test_a_window(starts: str | float, ends: str | float, zone: str, window: tuple[str, str]) -> None:
    begin, end = window_of(starts, ends, zone_of(zone), NOW)
    assert windows(begin, end) == [(at(window[0]), at(window[1]))]


def test_every_week_keeps_the_hour_on_the_wall() -> None:
    begin, end = window_of("2026-10-20 14:00", "16:00", zone_of("Europe/Berlin"), NOW)
    found = windows(begin, end, "week", "2026-11-03")
    assert found == [
        (at("2026-10-20T14:00+02:00"), at("2026-10-20T16:00+02:00")),
        (at("2026-10-27T14:00+01:00"), at("2026-10-27T16:00+01:00")),
        (at("2026-11-03T14:00+01:00"), at("2026-11-03T16:00+01:00")),
    ]
    assert len(windows(begin, end, "day", "2026-11-03")) == 15


@pytest.mark.parametrize(
    ("starts", "ends", "every", "last", "why"),
    [
        ("tomorrow", "16:00", None, None, "starts_at 'tomorrow' is no time; write it like"),
        ("14:00", "25:00", None, None, "ends_at '25:00' is no time"),
        ("14:00", 1e300, None, None, "ends_at '1e.300' is no time"),
        (253_402_300_798.0, "16:00", None, None, "is after the year 9000"),
        ("9999-12-31T23:00-10:00", "16:00", None, None, "starts_at '9999-12-31T23:00-10:00' is no time"),
        ("14:00", "16:00", "week", None, "every week needs a last day"),
        ("14:00", "16:00", None, "2026-12-01", "a last day needs a repetition"),
        ("14:00", "16:00", "week", "soon", "'soon' is not a day"),
        ("14:00", "16:00", "week", "2026-11-19", "is before the first window"),
        ("14:00", "16:00", "day", "2029-01-01", "more than 100 windows"),
    ],
)
def test_times_that_cannot_be(
    starts: str | float, ends: str | float, every: str | None, last: str | None, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        windows(*window_of(starts, ends, UTC, NOW), every, last)


@pytest.mark.parametrize("name", ["Berlin", "../etc/passwd", "+25:00", "", "Europe"])
def test_zones_that_are_none(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not known here; write it like Europe/Berlin"):
        zone_of(name)


@pytest.mark.parametrize(
    ("by", "zone", "when"),
    [
        ("2h", "UTC", "2026-11-20T11:30Z"),
        ("1 h 30 min", "UTC", "2026-11-20T11:00Z"),
        ("18:00", "Europe/Berlin", "2026-11-20T18:00+01:00"),
        ("09:00", "UTC", "2026-11-21T09:00Z"),
        ("2026-12-24 14:00", "+01:00", "2026-12-24T14:00+01:00"),
        ("2026-12-24T14:00-05:00", "UTC", "2026-12-24T19:00Z"),
    ],
)
def test_a_deadline(by: str, zone: str, when: str) -> None:
    assert deadline_of(by, zone_of(zone), NOW) == at(when)


@pytest.mark.parametrize("by", ["tomorrow", "25:00", "", "0s", "9999d"])
def test_what_is_no_deadline_is_refused(by: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        deadline_of(by, UTC, NOW)
    assert caught.value.field == "by"
