"""Token buckets on a fake clock. The count of long connections is right however they end."""

from __future__ import annotations

import asyncio

import pytest

from commonage.control.request_limits import Connection, Connections, RateLimit, requests_of_users
from commonage.control.settings import Limits
from commonage.domain.errors import Forbidden, TooMany, Unavailable
from commonage.domain.permissions import Role
from commonage.domain.principals import Principal, Scope
from commonage.testing.fakes.clock import FakeClock, settle

pytestmark = pytest.mark.anyio

ANN = Principal("ann", frozenset({Scope.READ, Scope.SUBMIT}))


async def same() -> Principal:
    return ANN


async def test_one_is_released_when_its_block_ends_breaks_or_is_cancelled() -> None:
    all_of_them = Connections(FakeClock(), Limits(streams_per_user=1))
    async with all_of_them.hold(Connection.STREAM, ANN, same):
        with pytest.raises(TooMany, match="the user ann has 1 event streams"):
            all_of_them.check(Connection.STREAM, "ann")
        all_of_them.check(Connection.COMMAND, "ann")
        all_of_them.check(Connection.STREAM, "bob")
    with pytest.raises(ValueError):
        async with all_of_them.hold(Connection.STREAM, ANN, same):
            raise ValueError

    async def wait() -> None:
        async with all_of_them.hold(Connection.STREAM, ANN, same):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await settle()
    assert all_of_them.count(Connection.STREAM) == all_of_them.count(Connection.STREAM, "ann") == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all_of_them.count(Connection.STREAM) == all_of_them.count(Connection.STREAM, "ann") == 0


async def test_all_users_together_have_a_limit() -> None:
    all_of_them = Connections(FakeClock(), Limits(streams=1))
    async with all_of_them.hold(Connection.STREAM, ANN, same):
        with pytest.raises(TooMany, match="all users together have 1 event streams"):
            all_of_them.check(Connection.STREAM, "bob")


@pytest.mark.parametrize("what", ["less", "broken"])
async def test_one_ends_when_its_identity_lost_a_right_or_cannot_be_checked(what: str) -> None:
    clock = FakeClock()
    all_of_them = Connections(clock, Limits(recheck_s=10))

    async def other() -> Principal:
        if what == "broken":
            raise RuntimeError("a bug")
        return Principal("ann", frozenset({Scope.READ}))

    async def wait() -> None:
        async with all_of_them.hold(Connection.STREAM, ANN, other):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await settle()
    await clock.advance(9)
    assert not waiting.done()
    await clock.advance(1)
    with pytest.raises(Forbidden if what == "less" else Unavailable):
        await asyncio.wait_for(waiting, 5)
    assert all_of_them.count(Connection.STREAM) == 0


async def test_one_ends_when_a_role_is_taken_away_but_not_when_one_is_given() -> None:
    clock, roles = FakeClock(), {("course", Role.TEACHER)}
    all_of_them = Connections(clock, Limits(recheck_s=10), lambda _: frozenset(roles))

    async def wait() -> None:
        async with all_of_them.hold(Connection.COMMAND, ANN, same):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await settle()
    roles.add(("course", Role.MEMBER))
    await clock.advance(10)
    assert not waiting.done()
    roles.remove(("course", Role.TEACHER))
    await clock.advance(10)
    with pytest.raises(Forbidden, match="the rights of ann have changed"):
        await asyncio.wait_for(waiting, 5)


async def test_a_timeout_of_the_block_itself_stays_one() -> None:
    all_of_them = Connections(FakeClock(), Limits())
    with pytest.raises(TimeoutError):
        async with all_of_them.hold(Connection.STREAM, ANN, same):
            raise TimeoutError


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
