"""Launch profiles: whose they are, and in which order."""

import pytest
from tests.unit.control.world import ANN, ROOT, Site

from commonage.control.resources.resources import Documents
from commonage.domain.errors import InvalidInput
from commonage.domain.resources import Document

pytestmark = pytest.mark.anyio


def profile(name: str, **fields: object) -> Document:
    return {"kind": "Profile", "name": name, **fields}


async def test_a_user_sees_the_profiles_of_own_tenants_in_order() -> None:
    async with Site().open() as control:
        await control.resources.apply(
            ROOT,
            Documents(
                [
                    {"kind": "Tenant", "name": "optics"},
                    profile("small", cpus=1, order=2),
                    profile("large", title="Large", cpus=8, memory="32GiB", gpus="A100:1", environment="base", order=1),
                    profile("others", tenants=["optics"]),
                ]
            ),
        )
        found = control.launch.options(ANN).profiles
        assert [one.name for one in found] == ["large", "small"]
        large = found[0]
        assert (large.title, large.cpus_milli, large.memory_mib, large.gpus) == ("Large", 8000, 32 * 1024, "A100:1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"environment": "nowhere"}, "the profile small: environment: 'nowhere' does not exist"),
        ({"tenants": ["nobody"]}, "the profile small: tenants: 'nobody' does not exist"),
        ({"gpus": "1 GB of any"}, "gpus"),
    ],
)
async def test_a_profile_names_only_what_exists(fields: Document, message: str) -> None:
    async with Site().open() as control:
        with pytest.raises(InvalidInput, match=message):
            await control.resources.apply(ROOT, Documents([profile("small", **fields)]))
