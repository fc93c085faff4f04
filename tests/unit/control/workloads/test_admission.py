"""What is refused at once, as it could never start."""

import pytest
from tests.unit.control.world import ANN, ROOT, Site, job

from commonage.control.reservations import Wanted
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import Unschedulable
from commonage.domain.principals import Principal
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.testing import factories

pytestmark = pytest.mark.anyio
LAB = Tenant("lab", quota=Quota(Bounds(gpu_milli=1000), Bounds(gpu_milli=0), per_user=Bounds(memory_mib=3072)))
MEMBER = Principal("ann", ANN.scopes, ("lab",))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (job(gang=True, array_size=4), "TooFewNodes(requested=4, nodes=3, "),
        (job(gang=True, array_size=3, gpu=parse_gpus("1")), "TooFewNodes(requested=3, nodes=2, "),
        (job(labels=(("zone", "moon"),)), "NodeLabelsMismatch("),
        (job(gpu=parse_gpus("2")), "TooManyGpus(requested=2, most=1)"),
        (
            job(gang=True, array_size=2, gpu=parse_gpus("1")),
            "limit=1000, borrowed=0, requested=2000)",
        ),
        (job(memory_mib=4096), "limit=3072, requested=4096)"),
    ],
)
async def test_it_is_said_at_once_and_in_numbers(ask: Submission, words: str) -> None:
    nodes = [factories.node("gpu-1", 1), factories.node("gpu-2", 1), factories.node("cpu-1")]
    site = Site(nodes, rules=Rules((LAB,)))
    async with site.open() as control:
        for asking in (control.workloads.submit(MEMBER, ask), control.workloads.dry_run(MEMBER, ask)):
            with pytest.raises(Unschedulable) as raised:
                await asking
            assert words in str(raised.value)


async def test_who_has_a_reservation_may_ask_for_more_than_the_quota() -> None:
    site = Site(rules=Rules((Tenant("course", quota=Quota(Bounds(gpu_milli=0), Bounds(gpu_milli=0))),)))
    student = Principal("ann", ANN.scopes, ("course",))
    async with site.open() as control:
        with pytest.raises(Unschedulable):
            await control.workloads.submit(student, job(gpu=parse_gpus("4GiB")))
        window = (site.clock.now(), site.clock.now() + 3600)
        asked = Request(500, 512, parse_gpus("4GiB"))
        await control.reservations.add(ROOT, Wanted("course", [window], asked, count=2))
        await site.clock.advance(1)
        made = await control.workloads.submit(student, job(gpu=parse_gpus("4GiB"), time_limit_s=600))
        await site.clock.advance(5)
        assert site.there(made.workloads[0]).state == "running"
