"""Run again: the form that is shown, sent unchanged, makes the same workload. The browser gets no value of a secret."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.fakes.portal import USER, Portal
from tests.unit.portal.conftest import Person

from commonage.domain.principals import Principal
from commonage.domain.requests import parse_gpus
from commonage.domain.volumes import VolumeRequest
from commonage.domain.workloads import Condition, Dependency, Kind, RetryPolicy, Spec, Workload
from commonage.portal.views.launch_form import Earlier, LaunchForm
from commonage.ports.store import Filter
from commonage.testing import factories
from commonage.testing.fakes.clock import FakeClock
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio
ANN = Principal("ann", USER)
SECRETS = (("TOKEN", "hush-1"), ("OTHER", "hush-2"))


class Fields(HTMLParser):
    """The fields that a browser would send from the launch form as shown."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sent: dict[str, list[str]] = {}
        self._select = self._area = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        name = found.get("name", "")
        if tag == "select":
            self._select = name
            self._options: list[str] = []
        elif tag == "option" and self._select:
            if "selected" in found or not self._options:
                self._options = [found.get("value", "")]
        elif tag == "textarea":
            self._area = name
            self.sent[name] = [""]
        elif tag == "input" and name:
            if found.get("type") in ("radio", "checkbox") and "checked" not in found:
                return
            self.sent.setdefault(name, []).append(found.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self.sent.setdefault(self._select, []).extend(self._options)
            self._select = ""
        if tag == "textarea":
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.sent[self._area][0] += data


async def archive() -> AsyncIterator[bytes]:
    yield b"files"


async def run_again(portal: Portal, person: Person, workload: Workload, **entered: str) -> Spec:
    """Send the form as it is shown, with what was `entered`; the spec of the newest workload."""
    page = (await person.get(f"launch?again={workload.id}")).text
    answer = await person.post("launch", Fields(page).sent | entered)
    assert answer.status_code == 303, answer.text
    made = answer.headers["location"].rpartition("/")[2]
    return (await portal.control.queries.workload(ANN, made)).spec


def comparable(spec: Spec) -> Spec:
    return replace(spec, key=None, array_id=None)


@pytest.mark.parametrize("kind", [Kind.JOB, Kind.SERVICE])
async def test_the_same_kind_is_made_with_everything_it_had(
    portal: Portal, ann: Person, submit: Callable[..., Any], kind: Kind
) -> None:
    bundle = await portal.control.bundles.send(ANN, archive())
    other = await submit(name="other")
    first = await submit(
        kind=kind,
        name="full",
        environment="base",
        command=("serve", "--port={port}", "it's"),
        gpus="4GiB",
        variables=(("A", "one\ntwo"), ("B", "")),
        secrets=SECRETS,
        bundle=bundle.digest,
        depends_on=(Dependency(other.id, Condition.AFTER_START),),
        grace_s=45,
        retry=RetryPolicy(2, 77.0),
        time_limit_s=7200,
        volumes=(VolumeRequest("datasets"), VolumeRequest("results", writable=True)),
        one_numa=True,
        preemptible=True,
        requeue=False,
        array_size=3 if kind is Kind.JOB else 0,
    )
    assert comparable(await run_again(portal, ann, first)) == comparable(first.spec)


async def test_an_array_is_made_again_whole(portal: Portal, ann: Person, submit: Callable[..., Any]) -> None:
    first = await submit(name="many", array_size=4)
    await run_again(portal, ann, first)
    found = await portal.control.queries.workloads(ANN, Filter(text="many"), limit=20)
    assert len(found.items) == 8


async def test_a_session_keeps_its_own_variables(
    portal: Portal, ann: Person, submit: Callable[..., Any], clock: FakeClock
) -> None:
    first = await submit(
        kind=Kind.SESSION,
        name="main",
        variables=(("MINE", "1"), ("JUPYTERHUB_USER", "ann")),
        secrets=(("JUPYTERHUB_API_TOKEN", "hubs"),),
    )
    page = (await ann.get(f"launch?again={first.id}")).text
    assert "JUPYTERHUB" not in page
    submission, _ = LaunchForm.again(first).submission(Earlier(first, "ann", has_files=False))
    assert submission is not None
    assert (submission.kind, submission.variables, submission.secrets) == (Kind.SESSION, (("MINE", "1"),), ())


async def test_no_value_of_a_secret_is_sent_to_the_browser(
    portal: Portal, ann: Person, submit: Callable[..., Any]
) -> None:
    first = await submit(secrets=SECRETS, variables=(("A", "shown-elsewhere"),))
    page = (await ann.get(f"launch?again={first.id}")).text
    assert "TOKEN, OTHER" in page
    assert "hush" not in page
    refused = await ann.post("launch", Fields(page).sent | {"cpus": "x", "secret-TOKEN": "entered"})
    assert refused.status_code == 422
    assert "hush" not in refused.text
    assert "entered" not in refused.text


async def test_secrets_of_ended_workload_must_be_entered_again(
    portal: Portal, ann: Person, submit: Callable[..., Any], clock: FakeClock
) -> None:
    first = await submit(name="old", secrets=SECRETS)
    portal.engine.end(f"{first.id}-1")
    await clock.advance(5)
    page = (await ann.get(f"launch?again={first.id}")).text
    assert 'name="secret-TOKEN"' in page
    assert "removes the values of secrets when a workload ends" in page
    refused = await ann.post("launch", Fields(page).sent | {"secret-TOKEN": "new"})
    assert refused.status_code == 422
    assert "Enter the value of OTHER" in refused.text
    spec = await run_again(portal, ann, first, **{"secret-TOKEN": " new ", "secret-OTHER": "x"})
    assert spec.secrets == (("TOKEN", " new "), ("OTHER", "x"))


async def test_without_secrets_if_they_are_cleared(portal: Portal, ann: Person, submit: Callable[..., Any]) -> None:
    first = await submit(secrets=SECRETS, variables=(("A", "1"),))
    spec = await run_again(portal, ann, first, keep="variables")
    assert (spec.secrets, spec.variables) == ((), (("A", "1"),))


async def test_an_admin_gets_neither_secrets_nor_files_of_a_user(
    portal: Portal, root: Person, submit: Callable[..., Any]
) -> None:
    bundle = await portal.control.bundles.send(ANN, archive())
    first = await submit(secrets=SECRETS, bundle=bundle.digest)
    page = (await root.get(f"launch?again={first.id}")).text
    assert 'name="secret-TOKEN"' in page
    assert "they belong to ann" in page
    refused = await root.post("launch", Fields(page).sent)
    assert refused.status_code == 422
    answer = await root.post("launch", Fields(page).sent | {"keep": ["files", "variables"]})
    assert answer.status_code == 303
    made = answer.headers["location"].removeprefix(f"{PORTAL_PATH}workloads/")
    spec = (await portal.store.workload(made)).spec
    assert (spec.owner, spec.secrets, spec.bundle) == ("root", (), None)


async def test_a_dependency_that_can_never_be_met_can_be_cleared(
    portal: Portal, ann: Person, submit: Callable[..., Any], clock: FakeClock
) -> None:
    other = await submit(name="other")
    portal.engine.end(f"{other.id}-1", 1)
    await clock.advance(5)
    depending = await submit(name="two", depends_on=(Dependency(other.id, Condition.AFTER_NOT_OK),))
    page = (await ann.get(f"launch?again={depending.id}")).text
    sent = Fields(page).sent
    assert "afternotok" in page
    assert (await ann.post("launch", sent | {"keep": ["variables"]})).status_code == 303


async def test_run_again_of_deleted_workload_is_a_conflict(ann: Person) -> None:
    answer = await ann.post("launch", {"kind": "job", "command": "true", "again": "01GONE", "keep": "secrets"})
    assert answer.status_code == 409
    assert "Workload not found: 01GONE" in answer.text
    assert 'name="again"' not in answer.text


def test_grace_and_array_are_fields_of_the_form() -> None:
    form = LaunchForm.read({"kind": "job", "command": "x", "grace": "1m", "array": "5"})
    submission, after = form.submission()
    assert submission is not None, after.errors
    assert (submission.grace_s, submission.array_size, submission.gang) == (60, 5, False)


@pytest.mark.parametrize(("field", "text"), [("array", "0"), ("array", "many"), ("array", "9" * 5000), ("grace", "x")])
def test_invalid_array_or_grace_is_an_error_at_its_field(field: str, text: str) -> None:
    submission, form = LaunchForm.read({"kind": "job", "command": "x", field: text}).submission()
    assert submission is None
    assert set(form.errors) == {field}


def test_a_service_has_a_command_and_no_array() -> None:
    form = LaunchForm.read({"kind": "service", "command": "serve", "array": "5", "nodes": "2", "retries": "1"})
    submission, _ = form.submission()
    assert submission is not None
    assert (submission.kind, submission.command, submission.array_size) == (Kind.SERVICE, ("serve",), 0)
    assert submission.retry.retries == 1


def test_a_session_takes_no_files_or_secrets() -> None:
    spec = factories.spec(secrets=SECRETS, bundle="0" * 64, gpus="4GiB")
    earlier = Earlier(factories.workload(spec_=spec), spec.owner, has_files=True)
    submission, _ = LaunchForm.again(earlier.workload).changed(kind="session").submission(earlier)
    assert submission is not None
    assert (submission.secrets, submission.bundle, submission.gpu) == ((), None, parse_gpus("4GiB"))


def test_the_form_shows_no_secret_in_a_traceback() -> None:
    assert "hush" not in repr(LaunchForm({}, secrets={"TOKEN": "hush"}))
