"""Rosters and calendars as teachers have them, and what a class refuses."""

import pytest

from commonage.domain.classes import Class
from commonage.domain.errors import InvalidInput
from commonage.resources.calendars import times_of_calendar
from commonage.resources.classes import ClassEntry, users_of_csv
from commonage.resources.documents import read

_TIME = {"starts": "2026-11-24 14:00", "ends": "16:00"}


def class_of(**fields: object) -> Class:
    form = read("Class", {"name": "ml", "tenant": "course", "users": ["ada"], "times": [_TIME], **fields})
    assert isinstance(form, ClassEntry)
    return form.made()


@pytest.mark.parametrize(
    "text",
    [
        "ada\ngrace\n",
        "\ufeffName;User;Mail\nAda L.;ada;a@x\nGrace H.;Grace;g@x\n",
        "login\tid\r\nada\t1\r\n\r\ngrace\t2\r\nada\t3\r\n",
    ],
)
def test_users_are_read_from_their_column_or_the_first_one(text: str) -> None:
    assert users_of_csv(text) == ["ada", "grace"]


@pytest.mark.parametrize(("text", "named"), [("", "empty"), ("user\nada\nx y\n", "line 3"), ('a"b\n', "line 1")])
def test_a_roster_that_cannot_be_read_names_the_line(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        users_of_csv(text)


def calendar(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", "SUMMARY:ML", *lines, "END:VEVENT", "END:VCALENDAR", ""])


BERLIN = "TZID=Europe/Berlin"


def test_a_series_keeps_its_local_time_over_a_change_of_summer_time() -> None:
    text = calendar(
        f"DTSTART;{BERLIN}:20261020T140000",
        f"DTEND;{BERLIN}:20261020T160000",
        "RRULE:FREQ=WEEKLY;COUNT=4;BYDAY=TU,TH",
        f"EXDATE;{BERLIN}:20261022T140000",
    )
    assert times_of_calendar(text, "Europe/Berlin") == [
        {"starts": f"2026-10-{day} 14:00", "ends": f"2026-10-{day} 16:00"} for day in (20, 27, 29)
    ]
    assert times_of_calendar(text, "UTC")[1:] == [
        {"starts": f"2026-10-{day} 13:00", "ends": f"2026-10-{day} 15:00"} for day in (27, 29)
    ]


def test_single_events_alarms_and_cancelled_ones() -> None:
    text = calendar(
        "DTSTART:20261124T130000Z", "DURATION:PT1H30M", "BEGIN:VALARM", "DTSTART:19990101T000000Z", "END:VALARM"
    )
    other = calendar("DTSTART:20261125T130000Z", "DURATION:PT1H", "STATUS:CANCELLED")
    assert times_of_calendar(text + other, "UTC") == [{"starts": "2026-11-24 13:00", "ends": "2026-11-24 14:30"}]


def test_a_calendar_of_too_many_events_is_refused() -> None:
    event = "\n".join(["BEGIN:VEVENT", "DTSTART;VALUE=DATE:20261124", "END:VEVENT", ""])
    with pytest.raises(InvalidInput, match="more than 200 events"):
        times_of_calendar("BEGIN:VCALENDAR\n" + event * 201, "UTC")


def test_a_series_of_every_second_week_ends_with_its_last_day() -> None:
    text = calendar("DTSTART:20261124T130000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;INTERVAL=2;UNTIL=20261222T130000Z")
    assert [one["starts"][5:10] for one in times_of_calendar(text, "UTC")] == ["11-24", "12-08", "12-22"]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["DTSTART;VALUE=DATE:20261124"], "no event with a time"),
        (["DTSTART:20261124T130000Z", "DTEND:20261124T120000Z"], "ends before"),
        (["DTSTART:20261124T130000Z"], "has no end"),
        (["DTSTART;TZID=W. Mars:20261124T130000", "DURATION:PT1H"], "time zone"),
        (["DTSTART:20261124T130000Z", "DURATION:PT1H", "RRULE:FREQ=MONTHLY;COUNT=3"], "only daily and weekly"),
        (["DTSTART:20261124T130000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY"], "without an end"),
        (
            ["DTSTART:20261124T130000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;INTERVAL=20000000;COUNT=2"],
            "interval above 366",
        ),
        (["DTSTART:20261124T130000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;INTERVAL=366;COUNT=9"], "five years"),
        (["DTSTART:20261124T130000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;UNTIL=99991231"], "more than 200 meetings"),
        (["DTSTART:99981124T130000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;INTERVAL=300;COUNT=9"], "year 9999"),
        (["DTSTART:99991231T230000Z", "DURATION:P999999W"], "year 9999"),
    ],
)
def test_an_event_that_is_not_understood_is_refused(lines: list[str], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        times_of_calendar(calendar(*lines), "UTC")


def test_a_class_has_the_seats_of_its_users_and_its_repeated_times() -> None:
    found = class_of(users=["ada", "grace"], times=[{**_TIME, "every": "week", "last_day": "2026-12-08"}])
    assert (found.seats, len(found.times)) == (2, 3)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "ml--x"}, "hyphen"),
        ({"users": []}, "needs a roster"),
        ({"groups": ["team"]}, "needs `seats`"),
        ({"users": ["ada", "bob"], "seats": 1}, "raise `seats`"),
        ({"times": [_TIME, _TIME | {"starts": "2026-11-24 15:00"}]}, "overlap"),
        ({"times": [{"starts": "14:00 today", "ends": "16:00"}]}, "date and time"),
        ({"ahead": "5h"}, "at most 4h"),
        ({"gpus": "0.5GiBs"}, "gpus|GPU|memory"),
    ],
)
def test_a_class_that_cannot_be_held_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        class_of(**fields)
