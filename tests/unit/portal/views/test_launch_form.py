"""The launch form as text, and the submission that comes of it."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.workloads import Kind
from commonage.portal.views.launch_form import LaunchForm, command_text, command_words, gpus_text
from commonage.testing import factories as make


def form(**values: str) -> LaunchForm:
    return LaunchForm.read({"kind": "job", "command": "true", **values})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --epochs 3", ("python", "train.py", "--epochs", "3")),
        ("python 'my script.py'", ("python", "my script.py")),
        ("a && b", ("sh", "-c", "a && b")),
        ("for i in 1 2; do echo $i; done", ("sh", "-c", "for i in 1 2; do echo $i; done")),
        ("line one\r\nline two", ("sh", "-c", "line one\nline two")),
        ("SEED=1 python x.py", ("sh", "-c", "SEED=1 python x.py")),
        ("python x.py --rate=0.1", ("python", "x.py", "--rate=0.1")),
        ("cat *.txt > all", ("sh", "-c", "cat *.txt > all")),
    ],
)
def test_a_simple_line_is_words_and_the_rest_is_the_shells(text: str, words: tuple[str, ...]) -> None:
    assert command_words(text) == words


@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00\r"), min_size=1), min_size=1)
)
def test_running_again_runs_the_same(command: list[str]) -> None:
    words = tuple(command)
    again = command_words(command_text(words))
    # What the shell makes of its line is what was there, where it went by way of the shell.
    assert again == words or shlex.split(again[2]) == list(words) or again[2] == words[2].strip()


def test_unclosed_quote_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="Cannot parse"):
        command_words("python 'train.py")


def test_the_whole_form_becomes_a_submission() -> None:
    filled = form(gpus="6GiB", cpus="1500m", memory="4GiB", time="1h30m", name="n", retries="2", environment="torch")
    submission, after = filled.submission()
    assert after.errors == {}
    assert submission is not None
    assert (submission.cpus_milli, submission.memory_mib, submission.time_limit_s) == (1500, 4096, 5400)
    assert submission.gpu is not None
    assert submission.gpu.vram_mib == 6144
    assert (submission.name, submission.environment, submission.retry.retries) == ("n", "torch", 2)


def test_blank_fields_take_the_installations_defaults() -> None:
    submission, _ = form().submission()
    assert submission is not None
    assert submission.cpus_milli is submission.memory_mib is submission.gpu is submission.time_limit_s is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("cpus", "-1"), ("cpus", "many"), ("memory", "0"), ("gpus", "5/0"), ("time", "-5m"), ("retries", "9999")],
)
def test_invalid_value_is_kept_with_an_error_at_its_field(name: str, text: str) -> None:
    submission, after = form(**{name: text}).submission()
    assert submission is None
    assert set(after.errors) == {name}
    assert after.values[name] == text


def test_all_errors_are_shown_at_once() -> None:
    _, after = form(cpus="x", memory="y", time="z", command="").submission()
    assert set(after.errors) == {"cpus", "memory", "time", "command"}


def test_while_typing_an_empty_command_is_no_error_yet() -> None:
    submission, after = form(command="").submission(considered=True)
    assert submission is not None
    assert after.errors == {}


def test_a_session_takes_no_command_of_the_job_form() -> None:
    submission, _ = form(kind="session", command="rm x", retries="3").submission()
    assert submission is not None
    assert (submission.command, submission.retry.retries) == ((), 0)


def test_an_unknown_kind_is_a_session() -> None:
    assert form(kind="<script>").kind is Kind.SESSION


def test_errors_of_control_stand_beside_their_field_or_above_all() -> None:
    assert form().refused(InvalidInput("no", field="environment")).errors == {"environment": "no"}
    assert form().refused(InvalidInput("no", field="depends_on")).errors == {"keep": "no"}
    assert form().refused(InvalidInput("no")).errors == {"": "no"}


def test_run_again_fills_the_form_with_what_was_asked() -> None:
    spec = make.spec(gpus="16GiB", name="n", command=("sh", "-c", "a | b"), time_limit_s=3600)
    again = LaunchForm.again(make.workload(spec_=spec))
    assert again.values["gpus"] == "16GiB"
    assert again.values["command"] == "a | b"
    submission, _ = again.submission()
    assert submission is not None
    assert (submission.command, submission.gpu, submission.time_limit_s) == (spec.command, spec.request.gpu, 3600)
    assert (submission.cpus_milli, submission.memory_mib) == (spec.request.cpus_milli, spec.request.memory_mib)


@pytest.mark.parametrize(
    ("text", "shown"), [("16384MiB", "16GiB"), ("A100:6144MiB", "A100:6GiB"), ("100MiB", "100MiB"), ("1", "1")]
)
def test_gpu_requests_are_shown_as_people_write_them(text: str, shown: str) -> None:
    assert gpus_text(text) == shown


def test_scheduling_fields_become_a_submission() -> None:
    given = {
        "kind": "job", "command": "train", "tenant": "optics", "priority": "low", "preemptible": "1", "nodes": "4",
        "on": "zone=basement, node=gpu-1",
    }  # fmt: skip
    submission, form = LaunchForm.read(given).submission()
    assert submission is not None, form.errors
    assert (submission.tenant, submission.priority, submission.preemptible) == ("optics", "low", True)
    assert (submission.array_size, submission.gang) == (4, True)
    assert submission.labels == (("node", "gpu-1"), ("zone", "basement"))
    session, _ = LaunchForm.read({**given, "kind": "session"}).submission()
    assert session is not None
    assert (session.array_size, session.gang) == (0, False)


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("nodes", "many", "Nodes must be a number from 1 to 1024"),
        ("nodes", "0", "Nodes must be a number"),
        ("on", "basement", "Write labels as NAME=VALUE"),
        ("on", "=x", "is not the name of a label"),
    ],
)
def test_invalid_scheduling_fields_are_errors(field: str, text: str, why: str) -> None:
    submission, form = LaunchForm.read({"kind": "job", "command": "x", field: text}).submission()
    assert submission is None
    assert why in form.errors[field]


def test_run_again_keeps_scheduling_fields() -> None:
    spec = make.spec(priority=-10, preemptible=True, gang=True, array_size=3, tenant="lab")
    spec = replace(spec, request=replace(spec.request, labels=(("zone", "a"),)))
    values = LaunchForm.again(make.workload(spec_=spec)).values
    assert [values[name] for name in ("tenant", "priority", "preemptible", "nodes", "on")] == [
        "lab", "-10", "1", "3", "zone=a",
    ]  # fmt: skip


def test_volumes_are_parsed_and_run_again() -> None:
    submission, _ = form(volumes="datasets, results:rw@/out").submission()
    assert submission is not None
    assert [one.text for one in submission.volumes] == ["datasets", "results:rw@/out"]
    workload = make.workload(volumes=submission.volumes)
    assert LaunchForm.again(workload).values["volumes"] == "datasets,results:rw@/out"
    nothing, wrong = form(volumes="datasets:w").submission()
    assert nothing is None
    assert "neither ro nor rw" in wrong.errors["volumes"]
