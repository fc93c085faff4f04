"""Job files: their fields, and the line of each mistake."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonage.cli.errors import Failure
from commonage.cli.workloads.job_file import read


def entries(tmp_path: Path, text: str | bytes) -> list[dict[str, object]]:
    path = tmp_path / "job.commonage.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [entry.request.model_dump(exclude_unset=True) for entry in read(path)]


def wrong(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(Failure) as caught:
        entries(tmp_path, text)
    return caught.value.format_message().replace(f"{tmp_path}/", "")


def test_one_workload(tmp_path: Path) -> None:
    text = "name: train\ncommand: python train.py 'a b'\ngpus: 6GiB\nnear: scans\nvariables: {A: '1'}\n"
    same = {"name": "train", "gpus": "6GiB", "near": "scans", "variables": {"A": "1"}}
    assert entries(tmp_path, text) == [{"command": ["python", "train.py", "a b"], **same}]


def test_text_with_units_becomes_numbers_of_the_api(tmp_path: Path) -> None:
    text = "command: x\ntime: 1:30:00\ngrace: 0\nbackoff: 1m\nmemory: 2048\n"
    numbers = {"time_limit_s": 5400, "grace_s": 0, "backoff_s": 60, "memory_mib": 2048}
    assert entries(tmp_path, text) == [{"command": ["x"], **numbers}]
    as_json = "".join(f"{name}: {value}\n" for name, value in numbers.items())
    assert entries(tmp_path, f"command: x\n{as_json}") == [{"command": ["x"], **numbers}]
    assert entries(tmp_path, "command: x\ntime:\n") == [{"command": ["x"]}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("time: 90", "line 2: time 90 has no unit. Write 90m for minutes or 90s for seconds."),
        ("time: soon", "line 2: time 'soon' is not a duration. Write it like 90s, 30m, 1h30m, 2d or 01:30:00."),
        ("time: 1h\ntime_limit_s: 60", "line 2: time and time_limit_s are the same. Give one of them."),
        ("time: [1h]", "line 2: time \"['1h']\" is not a duration."),
        ("time_limit_s: 1h", "line 2: time_limit_s: input should be a valid integer"),
    ],
)
def test_value_without_unit_or_given_twice_is_refused(tmp_path: Path, line: str, message: str) -> None:
    assert message in wrong(tmp_path, f"command: x\n{line}\n")


def test_placement_fields(tmp_path: Path) -> None:
    text = "command: [torchrun]\nnodes: 2\non: {zone: basement, a b: c}\none_numa: true\npriority: low\n"
    with pytest.raises(Failure, match=r"on\.a b: the name of a label has at most 63 letters"):
        entries(tmp_path, text)
    placement = {"on": {"zone": "basement"}, "one_numa": True, "priority": "low", "preemptible": True}
    assert entries(tmp_path, text.replace(", a b: c", "") + "preemptible: true\n") == [
        {"command": ["torchrun"], "nodes": 2, **placement}
    ]


def test_entries_may_depend_on_earlier_entries(tmp_path: Path) -> None:
    path = tmp_path / "job.commonage.yml"
    path.write_text(
        "- name: prepare\n  command: [python, prepare.py]\n  files: false\n"
        "- command: python train.py\n  depends_on: afterok:prepare\n  files: [train.py, data]\n"
        "- command: report\n  depends_on: [afterany:1m7yrdx7024rp, {id: 1m7yrdwsvfmdb, condition: after}]\n"
    )
    first, second, third = read(path)
    assert (first.files, second.files, third.files) == (False, ["train.py", "data"], [])
    assert second.after == [("prepare", "afterok")]
    assert [(each.id, each.condition) for each in third.request.depends_on] == [
        ("1m7yrdx7024rp", "afterany"),
        ("1m7yrdwsvfmdb", "after"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.commonage.yml is empty"),
        ("just text", "line 1: a workload is a mapping"),
        ("command: x\ngpu: 6GiB\n", "line 2: gpu: unknown field"),
        ("command: x\n\nretries: many\n", "line 3: retries"),
        ("- command: a\n- command: b\n  array: 0\n", "line 3: array"),
        ("command: x\ncommand: y\n", "line 2: command is given twice"),
        ("command: 'unclosed\n", "not valid YAML"),
        ("a: [b\n", "not valid YAML"),
        ('command: "echo \'x"\n', "line 1: invalid command"),
        ("command: x\ndepends_on: before:y\n", "line 2: invalid dependency 'before:y'"),
        ("command: x\nfiles: 7\n", "line 2: files must be true, false, or a list of paths"),
        ("command: x\nname: " + "n" * 300, "line 2: name"),
        (b"command: x\nname: \xff\xfe\n", "line 2: not UTF-8 text (byte 17)"),
        ("command: !!python/object/apply:os.system [ls]\n", "line 1: invalid"),
        ("- {a: 1}\n- {b: 2}\n", "line 1: a: unknown field\njob.commonage.yml, line 2: b: unknown"),
        ("x: &a [*a]\n", "unknown field"),
    ],
)
def test_mistake_is_reported_with_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert message in wrong(tmp_path, text)


def test_large_job_file_is_refused(tmp_path: Path) -> None:
    assert "is 10.0 MiB; a job file has at most 1 MiB" in wrong(tmp_path, b"#" * 10 * 1024**2)
    assert "a job file has at most 1000" in wrong(tmp_path, "- {command: x}\n" * 1001)


@pytest.mark.parametrize("name", ["gone.yml", "."])
def test_missing_job_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Failure, match="does not exist"):
        read(tmp_path / name)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text("-:[]{}&*!|>'\"#%@`,? \nabc019", max_size=80).map(str.encode))
def test_any_content_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.yml"
    path.write_bytes(content)
    try:
        read(path)
    except Failure as failure:
        assert failure.format_message()
