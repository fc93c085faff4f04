"""Options of a session: the same from a form, an address and the API; the form says what is free now."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.hub.options import CHOICES, EXTRAS, read_options, render_form, render_unavailable
from commonage.units import TEXT_FIELDS, with_units_in_names
from commonage.wire.cron_jobs import CronJobIn
from commonage.wire.environments import LaunchOptions
from commonage.wire.workloads import SubmitIn


def reason(message: str) -> dict[str, Any]:
    return {"code": "Any", "params": {}, "message": message}


OFFER = {
    "environments": [
        {
            "name": name,
            "title": title,
            "description": "",
            "kinds": kinds,
            "requirements": [],
            "state": "ready",
            "reason": None,
            "progress": None,
        }
        for name, title, kinds in [("lab", "Lab <3", ["session"]), ("plain", "Plain Python", ["job"])]
    ],
    "gpu_choices": [
        {"gpus": "6GiB", "title": "6 GiB", "free_now": True, "why_not": None},
        {"gpus": "1", "title": "a whole GPU", "free_now": False, "why_not": reason("8 of 24 GiB are free")},
    ],
    "models": ["A100"],
    "max_cpus_milli": 16000,
    "max_memory_mib": 65536,
    "max_vram_mib": 24576,
    "free_cpus_milli": 1500,
    "free_memory_mib": 8192,
    "simulated_gpus": False,
}


def offer(**changes: object) -> LaunchOptions:
    return LaunchOptions.model_validate(OFFER | changes)


def test_every_choice_is_a_field_of_the_submission() -> None:
    assert {*CHOICES, *EXTRAS} <= set(SubmitIn.model_fields) | TEXT_FIELDS
    text = {"time": "90m", "memory": "2048", "grace": "10s", "backoff": "0", "starting_deadline": "10m"}
    text["health_interval"] = "10s"
    assert text.keys() == TEXT_FIELDS
    assert with_units_in_names(text).keys() <= set(SubmitIn.model_fields) | set(CronJobIn.model_fields)


def test_ignores_options_reserved_for_the_control_plane() -> None:
    assert read_options({"gpus": "1", "priority": 100, "key": "mine", "variables": {}, "on": {}}) == {"gpus": "1"}


def test_form_and_api_give_equal_options() -> None:
    form = read_options({"environment": ["lab"], "gpus": [" 6GiB "], "cpus": ["2"], "memory": [""], "time": []})
    assert form == read_options({"environment": "lab", "gpus": "6GiB", "cpus": 2, "memory": None})
    assert form == {"environment": "lab", "gpus": "6GiB", "cpus": "2"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpu": "1", "ram": "2"}, "no option gpu, ram; there are environment, cpus"),
        ({"gpus": ["1", "2"]}, "gpus was given 2 times"),
        ({"gpus": True}, "gpus must be text or a number, not True"),
        ({"memory": {"GiB": 2}}, "memory must be text or a number"),
    ],
)
def test_refuses_invalid_options(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_options(options)


@given(st.dictionaries(st.sampled_from(CHOICES), st.none() | st.integers() | st.floats() | st.text()))
def test_reading_options_is_idempotent(options: dict[str, object]) -> None:
    once = read_options(options)
    assert read_options(once) == once
    assert all(once.values())


def test_form_shows_choices_and_free_resources() -> None:
    form = render_form(offer(), {"environment": "lab", "memory": '"><b>'})
    assert '<option value="lab" selected>Lab &lt;3</option>' in form
    assert "Plain Python" not in form
    assert "6 GiB – free now" in form  # noqa: RUF001 - the form's own dash
    assert "would wait: 8 of 24 GiB are free" in form
    assert "Free now: 6 GiB." in " ".join(form.split())
    assert "Up to 16, 1.5 free now" in form
    assert "Up to 64 GiB, 8 GiB free now" in form
    assert "<b>" not in form
    assert "simulated" not in form


def test_the_form_of_a_full_node() -> None:
    form = render_form(offer(gpu_choices=[], models=[], simulated_gpus=True), {})
    assert "nothing, so a session with a GPU would wait." in " ".join(form.split())
    assert "GPU (simulated)" in form


def test_unavailable_page() -> None:
    assert "cannot be loaded: it does not answer &lt;now&gt;" in render_unavailable("it does not answer <now>")


def test_the_form_offers_tenants_where_there_are_several() -> None:
    choices = [{"name": "commons", "title": ""}, {"name": "optics", "title": "Lab of Optics"}]
    form = render_form(offer(tenants=choices), {"tenant": "optics"})
    assert '<option value="optics" selected>Lab of Optics</option>' in form
    assert 'name="tenant"' not in render_form(offer(tenants=choices[:1]), {})


def test_requeue_is_a_checkbox_or_a_boolean() -> None:
    assert read_options({"requeue": ["true"]}) == read_options({"requeue": True}) == {"requeue": "true"}
    assert read_options({"requeue": []}) == {}
    assert SubmitIn.model_validate({"kind": "session", **read_options({"requeue": True})}).requeue is True
    form = render_form(offer(), {"requeue": "true"})
    assert 'name="requeue" value="true" checked' in " ".join(form.split())
    assert "checked" not in render_form(offer(), {})


def test_form_shows_notices() -> None:
    form = render_form(offer(notices=[reason("Your session ended: its node <w> is down.")]), {})
    assert "Your session ended: its node &lt;w&gt; is down." in form
    assert "alert" not in render_form(offer(), {})


def test_volumes_may_be_several() -> None:
    assert read_options({"volumes": ["datasets:ro", "", "results:rw"]}) == {"volumes": "datasets:ro,results:rw"}
    assert read_options({"volumes": "datasets"}) == {"volumes": "datasets"}
    assert read_options({"volumes": ["", ""]}) == {}


def test_the_form_offers_volumes() -> None:
    one = {"title": "", "description": "", "kind": "folder", "always": False, "size_mib": None, "in_memory": False}
    one |= {"tenants": [], "place": "", "notes": []}
    volumes = [
        {**one, "name": "datasets", "title": "Data <sets>", "writable": False},
        {**one, "name": "results", "writable": True, "notes": [reason("Enforced on a, not on b.")]},
        {**one, "name": "scratch", "writable": True, "kind": "scratch"},
        {**one, "name": "system", "writable": False, "always": True},
    ]
    form = render_form(offer(volumes=volumes), {"volumes": "datasets:ro,results:rw"})
    assert "Data &lt;sets&gt;" in form
    assert "Enforced on a, not on b.</span></label>" in form
    assert '<option value="datasets:ro" selected>' in form
    assert '<option value="results:rw" selected>' in form
    assert 'value="datasets:rw"' not in form
    assert 'value="scratch:ro"' not in form and 'value="scratch:rw"' in form
    assert "system" not in form
    assert 'name="volumes"' not in render_form(offer(), {})
