"""The table of series keeps to Prometheus' own rules for names, and to ours for labels."""

import re

import pytest

from commonage.metrics.series import SERIES, Series

UNITS = ("seconds", "bytes", "bytes_per_second", "ratio", "watts", "joules", "celsius", "cores", "hertz")
# Counts of things and facts have no unit; everything that is measured has.
COUNTED = re.compile(
    r"(workloads|sessions|nodes|users|environments|faults|changes|length|info|requests|commits|errors|ended|up|load)$"
)
ENDLESS = {"user", "owner", "workload", "attempt", "path", "id", "name"}


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.name)
def test_names_end_in_a_base_unit_or_count_something(series: Series) -> None:
    if series.name.startswith("DCGM_"):
        return
    assert series.name.startswith("commonage_")
    assert (series.kind == "counter") == series.name.endswith("_total")
    plain = series.name.removesuffix("_total")
    assert plain.endswith(UNITS) or COUNTED.search(plain)


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.name)
def test_labels_have_few_values(series: Series) -> None:
    assert not ENDLESS & {label.lower() for label in series.labels}


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.name)
def test_every_series_says_what_it_is(series: Series) -> None:
    assert series.help.endswith(".")


def test_no_name_stands_twice() -> None:
    assert len({series.name for series in SERIES}) == len(SERIES)
