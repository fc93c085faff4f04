"""The list of work: filters, paging, and that it stays quick with many."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person

from commonage.portal.views.workloads import PAGE, ListFilter
from commonage.ports.store import Batch
from commonage.testing import factories

pytestmark = pytest.mark.anyio


def names(page: str) -> list[str]:
    return re.findall(r'<tr id="w-.*?<a class="clip strong"[^>]*>(.*?)</a>', page, re.DOTALL)


async def test_filters_by_state_kind_and_text(ann: Person, submit: Callable[..., Any]) -> None:
    await submit(name="train two", gpus="80GiB")
    await submit(name="train one", gpus="4GiB")
    await submit(name="big", gpus="80GiB")
    assert names((await ann.get("workloads")).text) == ["big", "train one", "train two"]
    assert names((await ann.get("workloads?state=waiting")).text) == ["big"]
    assert names((await ann.get("workloads?text=TRAIN")).text) == ["train one", "train two"]
    assert names((await ann.get("workloads?kind=session")).text) == []
    assert names((await ann.get("workloads?state=running&text=one")).text) == ["train one"]


@pytest.mark.parametrize("query", ["state=odd", "kind=odd", "cursor=odd", "cursor=%00", "text=%ff", "owner=bob"])
async def test_invalid_query_values_are_ignored(ann: Person, submit: Callable[..., Any], query: str) -> None:
    await submit(name="mine")
    answer = await ann.get(f"workloads?{query}")
    assert answer.status_code == 200
    if "text" not in query:
        assert names(answer.text) == ["mine"]


async def test_paging_has_no_gaps_or_repetitions(portal: Portal, ann: Person) -> None:
    many = [factories.workload(owner="ann", name=f"job {number}") for number in range(1010)]
    await portal.store.commit(Batch(inserts=many))
    seen: list[str] = []
    path: str | None = "workloads"
    while path:
        page = (await ann.get(path)).text
        assert len(names(page)) <= PAGE
        seen += names(page)
        found = re.search(r'rel="next" href="/services/commonage/([^"]+)"', page)
        path = found[1].replace("&amp;", "&") if found else None
    assert seen == [f"job {number}" for number in reversed(range(1010))]
    assert "1,010" in page


async def test_row_offers_possible_actions(ann: Person, root: Person, submit: Callable[..., Any]) -> None:
    from commonage.domain.workloads import Kind

    session = await submit(kind=Kind.SESSION, command=(), name="lab")
    page = (await ann.get("workloads")).text
    assert 'href="/user/ann/lab/"' in page
    assert f"workloads/{session.id}/stop" in page
    # An admin may stop it, but it is not theirs to open.
    page = (await root.get("workloads?owner=ann")).text
    assert 'href="/user/ann/lab/"' not in page
    assert f"workloads/{session.id}/stop" in page


def test_each_list_has_its_own_stream() -> None:
    tags = {
        ListFilter().tag,
        ListFilter(state="failed").tag,
        ListFilter(text="x").tag,
        ListFilter(cursor="c").tag,
        ListFilter(owner="*").tag,
    }
    assert len(tags) == 5
