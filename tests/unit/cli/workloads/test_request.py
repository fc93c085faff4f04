"""The options of a request: dependencies, variables, labels, units, and errors."""

from typing import Any

import pytest

from commonage.cli.errors import Failure
from commonage.cli.tenant import Instant
from commonage.cli.workloads.request import dependencies, message, request_fields, variables, with_units


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["abc"], [("abc", "afterok")]),
        (["afterany:abc"], [("abc", "afterany")]),
        (["afterok:a:b,afternotok:c"], [("a", "afterok"), ("b", "afterok"), ("c", "afternotok")]),
        (["after:a", "afterok:b"], [("a", "after"), ("b", "afterok")]),
    ],
)
def test_dependencies_have_the_form_of_slurm(given: list[str], expected: list[tuple[str, str]]) -> None:
    assert [(each["id"], each["condition"]) for each in dependencies(given)] == expected


@pytest.mark.parametrize("given", ["before:a", "afterok:", "", "afterok:a::b"])
def test_invalid_dependencies_are_refused(given: str) -> None:
    with pytest.raises(Failure, match="invalid dependency"):
        dependencies([given])


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN", "here")
    monkeypatch.delenv("UNSEEN", raising=False)
    assert variables(["A=1", "B=x=y", "SEEN", "E="], "--var") == {"A": "1", "B": "x=y", "SEEN": "here", "E": ""}
    with pytest.raises(Failure, match="--var UNSEEN: this variable is not set here"):
        variables(["UNSEEN"], "--var")


def test_unset_options_are_not_sent() -> None:
    ask = message({"command": ["true"], "gpus": None, "variables": {}, "depends_on": [], "cpus": "2"})
    assert ask.model_dump(exclude_unset=True) == {"command": ["true"], "cpus": "2"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": "x" * 300}, "name: 300 characters; at most 128 are allowed"),
        ({"command": ["a\udcff"]}, r"command\.0: is not valid UTF-8"),
        ({"variables": {"A B": "secret"}}, r"variables\.A B: the name of a variable has at most 128 letters"),
        ({"cpus": ["2"]}, "cpus: input should be a valid"),
        ({"name": "a\x00b"}, "name: "),
        ({"colour": "red"}, "colour: unknown field"),
        ({"variables": {"1X": "y"}}, "variables.1X"),
        ({"retries": -1}, "retries: "),
    ],
)
def test_invalid_field_is_named(values: dict[str, Any], text: str) -> None:
    with pytest.raises(Failure, match=text):
        message({"command": ["true"], **values})


def test_times_of_usage() -> None:
    assert Instant().convert("2026-11-01", None, None) < Instant().convert("2026-11-01T14:30", None, None)
    assert Instant().convert("2d", None, None) < Instant().convert("1h", None, None)
    with pytest.raises(Exception, match="'yesterday' is not a time"):
        Instant().convert("yesterday", None, None)


NOTHING: dict[str, Any] = dict.fromkeys(
    ("gpus", "cpus", "memory", "time", "environment", "priority", "preemptible", "tenant", "near", "one_numa", "site")
) | {"on": (), "volumes": ()}


def test_labels_and_site() -> None:
    assert request_fields(NOTHING) == {}
    given = NOTHING | {"on": ("zone=a=b", "node=gpu-1"), "site": "north", "priority": "low", "preemptible": True}
    assert request_fields(given) == {
        "priority": "low",
        "preemptible": True,
        "on": {"zone": "a=b", "node": "gpu-1", "site": "north"},
    }
    assert message({"command": ["true"], **request_fields(given)}).on["node"] == "gpu-1"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"on": ("zone",)}, "--on zone is not a label. Write --on zone=basement"),
        ({"on": ("=x",)}, "--on =x is not a label"),
        ({"on": ("a=1", "a=2")}, "--on a=1 and --on a=2 exclude each other"),
        ({"on": ("site=south",), "site": "north"}, "--site north and --on site=south exclude each other"),
    ],
)
def test_invalid_labels_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(Failure, match=text):
        request_fields(NOTHING | given)


def test_near_is_sent_unchanged() -> None:
    assert request_fields(NOTHING | {"near": "datasets"}) == {"near": "datasets"}


def test_volumes_are_sent_unchanged() -> None:
    given = request_fields(NOTHING | {"volumes": ("datasets", "results:rw@/out")})
    assert message({"command": ["true"], **given}).volumes == ["datasets", "results:rw@/out"]


def test_options_with_units_become_numbers_of_the_api() -> None:
    given = NOTHING | {"time": "1h30m", "memory": "4G"}
    assert request_fields(given) == {"time_limit_s": 5400, "memory_mib": 4096}
    assert with_units({"grace": "0s"}) == {"grace_s": 0}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"time": "90"}, "--time 90 has no unit. Write 90m for minutes or 90s for seconds."),
        ({"memory": "lots"}, "--mem 'lots' is not an amount of memory. Write it like 6GiB or 512MiB."),
    ],
)
def test_options_without_a_unit_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(Failure) as caught:
        request_fields(NOTHING | given)
    assert caught.value.format_message() == text
