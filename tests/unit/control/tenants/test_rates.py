"""Token buckets on a clock that a test advances."""

import pytest

from commonage.control.limits import Limits
from commonage.control.tenants.rates import RateLimit, requests_of_users
from commonage.domain.errors import TooMany
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_a_bucket_empties_and_fills_again() -> None:
    clock = FakeClock()
    rate = RateLimit(clock, "Too many requests of", per_s=2.0, burst=4)
    for _ in range(4):
        rate.take("ann")
    with pytest.raises(TooMany, match=r"of ann: at most 2 a second and 4 at once allowed") as caught:
        rate.take("ann")
    assert caught.value.retry_after_s == pytest.approx(0.5)
    rate.take("bob")
    await clock.advance(0.5)
    rate.take("ann")
    with pytest.raises(TooMany):
        rate.take("ann")
    await clock.advance(3600)
    for _ in range(4):
        rate.take("ann")
    with pytest.raises(TooMany):
        rate.take("ann")


async def test_what_is_given_back_does_not_count() -> None:
    rate = RateLimit(FakeClock(), "Too many requests of", per_s=1.0, burst=1)
    for _ in range(3):
        rate.take("ann")
        rate.give_back("ann")
    rate.give_back("ann")
    rate.take("ann")
    with pytest.raises(TooMany):
        rate.take("ann")


async def test_a_user_may_ask_four_times_as_often_at_once() -> None:
    rate = requests_of_users(FakeClock(), Limits(requests_per_s=5))
    for _ in range(20):
        rate.take("ann")
    with pytest.raises(TooMany):
        rate.take("ann")
