"""Every page: its headers, no script or style in the page itself, awkward names, empty states, ways out of errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.fakes.portal import USER, Portal
from tests.unit.portal.conftest import Person

from commonage.control.workloads.submission import Submission
from commonage.domain.principals import Principal
from commonage.domain.workloads import Kind
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.clock import FakeClock
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio

PAGES = ("", "launch", "launch?kind=job", "workloads", "workloads?state=waiting", "nodes", "images", "reservations",
         "data", "data?volume=scratch", "usage", "usage?by=environment")  # fmt: skip
LIVE = ("live/overview", "live/workloads", "live/nodes", "live/images")
AWKWARD = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}</textarea><hx-partial>&amp;"


class Outline(HTMLParser):
    """The data of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.inline: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(str(found["id"]))
        if tag == "style" or (tag == "script" and not found.get("src")):
            self.inline.append(f"<{tag}>")
        # Event handlers and hx-on are scripts too; js: in an attribute has htmx evaluate it.
        self.inline += [name for name in found if name == "style" or name.startswith(("on", "hx-on"))]
        self.inline += [
            f"{name}={value}" for name, value in found.items() if re.match(r"\s*j(ava)?s(cript)?:", value or "")
        ]


def assert_whole(html: str) -> Outline:
    outline = Outline(html)
    assert outline.inline == []
    assert len(outline.ids) == len(set(outline.ids)), "an id stands twice"
    for tag, attributes in outline.tags:
        if tag == "img":
            assert "alt" in attributes
        if tag == "script":
            assert str(attributes["src"]).startswith(f"{PORTAL_PATH}static/")
    return outline


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_keeps_the_policy(ann: Person, root: Person, path: str) -> None:
    for person in (ann, root):
        answer = await person.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert_whole(answer.text)


@pytest.mark.parametrize("path", ["", "nodes", "launch"])
async def test_pages_with_simulated_devices_say_so(ann: Person, path: str) -> None:
    assert "Simulated</span>" in (await ann.get(path)).text


async def test_empty_states_have_texts(ann: Person) -> None:
    assert "No active workloads" in (await ann.get("")).text
    assert "No workloads yet" in (await ann.get("workloads")).text
    assert "No workloads match" in (await ann.get("workloads?text=absent")).text
    assert "No usage in this period" in (await ann.get("usage")).text


async def test_markup_in_names_is_escaped_everywhere(
    portal: Portal, ann: Person, root: Person, submit: Callable[..., Any], clock: FakeClock
) -> None:
    portal.engine.behave(Behaviour(lasts_s=None, prints=(AWKWARD,)), name=AWKWARD)
    fields: dict[str, Any] = {"variables": (("NAME", AWKWARD),), "secrets": (("KEY", "hidden-value"),)}
    running = await submit(name=AWKWARD, gpus="4GiB", command=("echo", AWKWARD), **fields)
    waiting = await submit(name=AWKWARD, gpus="80GiB", command=("sh", "-c", AWKWARD))
    waiting2 = await submit(name=AWKWARD, gpus="80GiB", time_limit_s=60)
    await clock.advance(2)
    paths = ["", "workloads", "nodes", "usage", f"launch?again={waiting.id}", f"workloads?text={AWKWARD}"]
    paths += [f"workloads/{one.id}" for one in (running, waiting, waiting2)]
    for person in (ann, root):
        for path in paths:
            answer = await person.get(path)
            assert answer.status_code == 200, path
            outline = assert_whole(answer.text)
            assert not any(tag in ("hx-partial", "template") for tag, _ in outline.tags)
            assert "onerror=alert(1)>" not in re.sub(r'="[^"]*"', "", answer.text)
            assert "hidden-value" not in answer.text
            assert "49" not in re.findall(r"alert\(1\)&gt;(\d+)", answer.text)


async def test_unknown_path_gives_error_page_with_links(ann: Person) -> None:
    for path in ("nowhere", "workloads/0000000000000", "workloads/<script>", "nodes/none", "static/../router.py"):
        answer = await ann.get(path)
        assert answer.status_code == 404
        assert "content-security-policy" in answer.headers or "no such file" in answer.text
        if "static" not in path:
            assert f'href="{PORTAL_PATH}"' in answer.text
            assert_whole(answer.text)


async def test_unexpected_exception_gives_error_page(
    portal: Portal, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("inner workings")

    monkeypatch.setattr(portal.control.node_views, "all", broken)
    answer = await ann.get("nodes")
    assert answer.status_code == 500
    assert "inner workings" not in answer.text
    assert "Internal error" in answer.text


async def test_static_files_with_digest_are_cached_forever(ann: Person) -> None:
    page = (await ann.get("")).text
    found = re.findall(rf"{PORTAL_PATH}(static/[\w./-]+)\?v=(\w+)", page)
    assert {name for name, _ in found} >= {"static/base.css", "static/portal.js", "static/vendor/htmx.min.js"}
    for name, digest in found:
        answer = await ann.get(f"{name}?v={digest}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert "immutable" not in (await ann.get("static/base.css?v=old")).headers["cache-control"]


async def test_static_files_need_no_sign_in_and_nothing_else_is_served(portal: Portal) -> None:
    stranger = Person(portal)
    assert (await stranger.get("static/base.css")).status_code == 200
    for name in ("..%2frouter.py", "%2e%2e/router.py", "vendor/.stamp", "vendor"):
        assert (await stranger.get(f"static/{name}")).status_code in (302, 404)


async def test_other_users_see_owner_but_not_name(
    portal: Portal, ann: Person, root: Person, submit: Callable[..., Any]
) -> None:
    await submit("bob", gpus="16GiB", name="secret-plan")
    await submit("bob", gpus="80GiB", name="other-plan", kind=Kind.JOB)
    for path in ("", "nodes"):
        page = (await ann.get(path)).text
        assert "bob" in page
        assert "secret-plan" not in page
        assert "secret-plan" in (await root.get(path)).text
    assert "secret-plan" not in (await ann.get("workloads?owner=*")).text
    assert "secret-plan" in (await root.get("workloads?owner=*")).text
    assert "secret-plan" not in (await root.get("workloads")).text


async def test_usage_shows_own_rows_and_all_rows_to_admins(
    ann: Person, root: Person, submit: Callable[..., Any], clock: FakeClock
) -> None:
    await submit("bob", gpus="16GiB", name="bobs")
    await submit("ann", gpus="8GiB", name="anns")
    await clock.advance(450)
    page = (await ann.get("usage?by=owner")).text
    assert "1.00" in page
    assert ">bob<" not in page
    page = (await root.get("usage")).text
    assert ">bob</a>" in page
    assert ">ann</a>" in page
    assert "EUR" in page


async def test_overview_counts_starting_and_running_separately(
    portal: Portal, ann: Person, submit: Callable[..., Any], clock: FakeClock
) -> None:
    await submit(name="train")
    portal.engine.default = Behaviour(lasts_s=None, start_delay_s=600)
    await portal.control.workloads.submit(Principal("ann", USER), Submission(Kind.JOB, ("true",)))
    await clock.advance(2)
    page = (await ann.get("")).text
    assert "1 running, 1 starting, 0 queued" in page
    assert '1<span class="muted"> running</span></span><span class="small muted">1 starting, 0 queued' in page
    page = (await ann.get("workloads?state=running")).text
    assert page.count('<tr id="w-') == 1
    assert (await ann.get("workloads?state=starting")).text.count('<tr id="w-') == 1
