"""Rates from counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.node_usage import MAX_SPAN_S, NodeCounters, Rates, rates_between
from commonage.units import format_speed

_COUNTERS = st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e15, allow_nan=False))


@given(_COUNTERS, _COUNTERS, st.floats(-10, 1000))
def test_a_rate_is_never_negative(before: dict[str, float], now: dict[str, float], span: float) -> None:
    rate = rates_between(NodeCounters(0.0, cpu_s=before), NodeCounters(span, cpu_s=now)).cpu_cores
    assert rate is None or rate >= 0


def test_rates_are_sums_over_what_is_in_both_readings() -> None:
    before = NodeCounters(10.0, {"cpu0": 1.0, "cpu1": 1.0}, {"sda": 0.0}, {"sda": 500.0}, {"eth0": 0.0}, {"eth0": 7.0})
    now = NodeCounters(
        12.0, {"cpu0": 3.0, "cpu1": 2.0}, {"sda": 4000.0, "sdb": 9e9}, {"sda": 500.0}, {"eth0": 20.0}, {"eth0": 9.0}
    )
    assert rates_between(before, now) == Rates(1.5, 2000.0, 0.0, 10.0, 1.0)


def test_a_counter_that_was_reset_is_left_out() -> None:
    before = NodeCounters(0.0, network_sent={"eth0": 1e9, "eth1": 100.0})
    now = NodeCounters(2.0, network_sent={"eth0": 5.0, "eth1": 300.0})
    assert rates_between(before, now).network_sent_bytes_per_s == 100.0
    assert rates_between(now, NodeCounters(4.0, network_sent={"eth0": 0.0})).network_sent_bytes_per_s is None


@pytest.mark.parametrize("span", [-5.0, 0.0, 0.1, MAX_SPAN_S + 1])
def test_too_short_or_too_long_a_span_gives_no_rates(span: float) -> None:
    assert rates_between(NodeCounters(0.0, {"cpu0": 0.0}), NodeCounters(span, {"cpu0": 1.0})) == Rates()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 B/s"), (999.4, "999 B/s"), (999.6, "1.0 kB/s"), (1_500.0, "1.5 kB/s"), (12_345_678.0, "12 MB/s")],
)
def test_speeds_are_short(value: float, text: str) -> None:
    assert format_speed(value) == text
