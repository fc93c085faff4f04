"""The page "Sites": who sees it, the token that is shown once, revoking and removing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import assert_whole

from commonage.domain.errors import InvalidInput, Unavailable
from commonage.domain.reasons.nodes import UnreachableJoinService
from commonage.ports.joining import JoinToken
from commonage.ports.sites import JoinedSite, SiteState, SiteToken, SiteView
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


class FakeSites:
    """Sites in memory, one in each state. The token of a site is `token-NAME`."""

    def __init__(self) -> None:
        self.views = {
            "clinic": SiteView(
                "clinic", SiteState.CONNECTED, 1.0, since=2.0, last_seen=3.0, certificate_until=4.0,
                address="10.0.0.1", version="0.1.0", protocol=1, clock_offset_s=-7.25,
            ),
            "lab": SiteView("lab", SiteState.DISCONNECTED, 1.0, last_seen=3.0),
            "new": SiteView("new", SiteState.INVITED, token_until=9.0),
            "old": SiteView("old", SiteState.REVOKED, 1.0),
        }  # fmt: skip
        self.revoked: list[str] = []

    async def sites(self) -> Sequence[SiteView]:
        return list(self.views.values())

    async def token(self, name: str, for_s: int) -> SiteToken:
        if name != name.lower():
            raise InvalidInput("use lower-case letters", field="name")
        return SiteToken(name, f"token-{name}", float(for_s), "commonage site join --token-file -")

    async def join(self, token: str, csr_pem: str) -> JoinedSite:
        raise AssertionError("machines join at the join listener")

    async def revoke(self, name: str) -> None:
        self.revoked.append(name)

    async def remove(self, name: str) -> None:
        del self.views[name]


class FakeJoining:
    """A join service, or one of a site that is away."""

    def __init__(self, site: str, is_away: bool = False) -> None:
        self._site, self._is_away = site, is_away

    async def token(self, for_s: int) -> JoinToken:
        if self._is_away:
            raise Unavailable(UnreachableJoinService(site=self._site, since=1.0))
        return JoinToken(f"node-token-{for_s}", 9.0, "https://10.0.0.1:8445/join.sh", "curl -fsSko join.sh …")


@pytest.fixture
def fake_sites() -> FakeSites:
    return FakeSites()


@pytest.fixture
async def portal(clock: FakeClock, fake_sites: FakeSites) -> AsyncIterator[Portal]:
    joining: Any = {"clinic": FakeJoining("clinic"), "lab": FakeJoining("lab", is_away=True)}
    async with Portal(clock, sites=fake_sites, joining=joining).running() as running:
        await clock.advance(6)
        yield running


async def test_admin_sees_the_links_and_a_clock_that_differs(root: Person) -> None:
    page = (await root.get("sites")).text
    assert_whole(page)
    assert all(name in page for name in ("clinic", "lab", "new", "old", "10.0.0.1"))
    assert "7.2 s ahead" in page


async def test_token_is_shown_once(root: Person) -> None:
    made = await root.post("sites", {"name": "ward", "for_s": "86400"})
    assert_whole(made.text)
    assert "token-ward" in made.text
    assert "commonage site join --token-file -" in made.text
    assert "token-ward" not in (await root.get("sites")).text


async def test_refused_name_is_kept_with_the_reason(root: Person) -> None:
    refused = await root.post("sites", {"name": "Ward", "for_s": "3600"})
    assert refused.status_code == 422
    assert 'value="Ward"' in refused.text
    assert 'id="error-name"' in refused.text


async def test_admin_revokes_and_removes(root: Person, fake_sites: FakeSites) -> None:
    assert (await root.post("sites/clinic/revoke")).status_code == 303
    assert fake_sites.revoked == ["clinic"]
    assert (await root.post("sites/lab/remove")).status_code == 303
    assert "lab" not in fake_sites.views


async def test_token_for_nodes_of_a_site_is_shown_once(root: Person) -> None:
    page = (await root.get("sites")).text
    assert page.count("Add nodes") == 1, "of the connected site"
    made = await root.post("sites/clinic/node-token")
    assert_whole(made.text)
    assert "node-token-3600" in made.text
    assert "curl -fsSko join.sh" in made.text
    assert "node-token-3600" not in (await root.get("sites")).text


async def test_site_that_nodes_cannot_join_says_why(root: Person) -> None:
    refused = await root.post("sites/lab/node-token")
    assert (refused.status_code, "lab has been unreachable since" in refused.text) == (503, True)
    assert (await root.post("sites/nowhere/node-token")).status_code == 404


async def test_members_neither_see_sites_nor_change_them(ann: Person, fake_sites: FakeSites) -> None:
    assert (await ann.get("sites")).status_code == 403
    for path in ("sites", "sites/clinic/node-token", "sites/clinic/revoke", "sites/clinic/remove"):
        assert (await ann.post(path, {"name": "mine", "for_s": "3600"})).status_code == 403
    assert fake_sites.revoked == [] and len(fake_sites.views) == 4


async def test_page_says_how_to_let_sites_join(clock: FakeClock) -> None:
    async with Portal(clock).running() as portal:
        person = Person(portal)
        await person.sign_in("root")
        page = await person.get("sites")
        assert "site_address" in page.text
        assert (await person.post("sites", {"name": "ward", "for_s": "3600"})).status_code == 409
