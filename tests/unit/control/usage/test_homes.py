from collections.abc import Mapping

import pytest

from commonage.control.settings import ControlSettings
from commonage.control.usage.homes import HomeWatch
from commonage.domain.errors import Forbidden, Unavailable
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import HomeUsed
from commonage.domain.volumes import folder_name
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
ADA = Principal("Ada L.", frozenset({Scope.READ}))
ADMIN = Principal("root", frozenset(Scope))


class Measured:
    """Homes of these sizes, or none that can be measured."""

    def __init__(self, used: Mapping[str, int] | None) -> None:
        self.used = used

    async def measure(self) -> Mapping[str, int]:
        if self.used is None:
            raise Unavailable("the disk is away")
        return self.used


async def test_who_has_more_than_is_allowed_is_told() -> None:
    homes = Measured({folder_name("Ada L."): 3 * 1024, "bob": 10})
    watch = HomeWatch(homes, FakeClock(), ControlSettings(home_quota_mib=2 * 1024))
    assert watch.of(ADA) is None
    await watch.refresh()
    view = watch.of(ADA)
    assert view is not None and view.is_over
    assert view.reason == HomeUsed(used_mib=3 * 1024, quota_mib=2 * 1024)
    homes.used = None
    await watch.refresh()
    assert watch.of(ADA) == view, "what cannot be measured stays as it was"
    assert list(watch.all(ADMIN)) == [folder_name("Ada L."), "bob"]
    with pytest.raises(Forbidden):
        watch.all(ADA)


async def test_without_a_bound_there_is_only_a_figure() -> None:
    watch = HomeWatch(Measured({"bob": 2048}), FakeClock(), ControlSettings())
    await watch.refresh()
    view = watch.of(Principal("bob", frozenset({Scope.READ})))
    assert view is not None and not view.is_over
    assert view.reason == HomeUsed(used_mib=2048, quota_mib=None)
