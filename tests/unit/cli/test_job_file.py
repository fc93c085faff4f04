"""Job files: what they may hold, and the line of whatever is wrong."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonage.cli.failures import Failure
from commonage.cli.job_file import read


def entries(tmp_path: Path, text: str | bytes) -> list[dict[str, object]]:
    path = tmp_path / "job.commonage.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [entry.ask.model_dump(exclude_unset=True) for entry in read(path)]


def wrong(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(Failure) as caught:
        entries(tmp_path, text)
    return caught.value.format_message().replace(f"{tmp_path}/", "")


def test_one_workload(tmp_path: Path) -> None:
    text = "name: train\ncommand: python train.py 'a b'\ngpus: 6GiB\ntime: 2h\nretries: 2\nvariables: {A: '1'}\n"
    assert entries(tmp_path, text) == [
        {
            "name": "train",
            "command": ["python", "train.py", "a b"],
            "gpus": "6GiB",
            "time_limit_s": 7200,
            "retries": 2,
            "variables": {"A": "1"},
        }
    ]


def test_text_with_units_becomes_the_numbers_of_the_api(tmp_path: Path) -> None:
    text = "command: x\ntime: 1:30:00\ngrace: 0\nbackoff: 1m\nmemory: 2048\n"
    numbers = {"time_limit_s": 5400, "grace_s": 0, "backoff_s": 60, "memory_mib": 2048}
    assert entries(tmp_path, text) == [{"command": ["x"], **numbers}]
    as_json = "".join(f"{name}: {value}\n" for name, value in numbers.items())
    assert entries(tmp_path, f"command: x\n{as_json}") == [{"command": ["x"], **numbers}]
    assert entries(tmp_path, "command: x\ntime:\n") == [{"command": ["x"]}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("time: 90", "line 2: time 90 has no unit. Write 90m for minutes or 90s for seconds."),
        ("time: soon", "line 2: time 'soon' is not a duration. Write it like 90s, 30m, 1h30m, 2d or 01:30:00."),
        ("time: 1h\ntime_limit_s: 60", "line 2: time and time_limit_s are the same. Give one of them."),
        ("time: [1h]", "line 2: time \"['1h']\" is not a duration."),
        ("time_limit_s: 1h", "line 2: time_limit_s: input should be a valid integer"),
    ],
)
def test_what_has_no_unit_or_two(tmp_path: Path, line: str, said: str) -> None:
    assert said in wrong(tmp_path, f"command: x\n{line}\n")


def test_where_and_how_it_may_run(tmp_path: Path) -> None:
    text = "command: [torchrun]\nnodes: 2\non: {zone: basement, a b: c}\none_numa: true\npriority: low\n"
    with pytest.raises(Failure, match=r"on\.a b: a label's name has letters"):
        entries(tmp_path, text)
    assert entries(tmp_path, text.replace(", a b: c", "") + "preemptible: true\n") == [
        {
            "command": ["torchrun"],
            "nodes": 2,
            "on": {"zone": "basement"},
            "one_numa": True,
            "priority": "low",
            "preemptible": True,
        }
    ]


def test_a_list_whose_entries_name_each_other(tmp_path: Path) -> None:
    path = tmp_path / "job.commonage.yml"
    path.write_text(
        "- name: prepare\n  command: [python, prepare.py]\n  files: false\n"
        "- command: python train.py\n  depends_on: afterok:prepare\n  files: [train.py, data]\n"
        "- command: report\n  depends_on: [afterany:1m7yrdx7024rp, {id: 1m7yrdwsvfmdb, condition: after}]\n"
    )
    first, second, third = read(path)
    assert (first.files, second.files, third.files) == (False, ["train.py", "data"], [])
    assert second.after == [("prepare", "afterok")]
    assert [(one.id, one.condition) for one in third.ask.depends_on] == [
        ("1m7yrdx7024rp", "afterany"),
        ("1m7yrdwsvfmdb", "after"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "job.commonage.yml is empty"),
        ("just text", "line 1: a workload is written as fields"),
        ("command: x\ngpu: 6GiB\n", "line 2: gpu: there is no such field"),
        ("command: x\n\nretries: many\n", "line 3: retries"),
        ("- command: a\n- command: b\n  array: 0\n", "line 3: array"),
        ("command: x\ncommand: y\n", "line 2: command stands there twice"),
        ("command: 'unclosed\n", "not valid YAML"),
        ("a: [b\n", "not valid YAML"),
        ('command: "echo \'x"\n', "line 1: the command is not understood"),
        ("command: x\ndepends_on: before:y\n", "line 2: the dependency 'before:y' is not understood"),
        ("command: x\nfiles: 7\n", "line 2: files takes true, false, or a list of paths"),
        ("command: x\nname: " + "n" * 300, "line 2: name"),
        (b"command: x\nname: \xff\xfe\n", "line 2: not UTF-8 text (byte 17)"),
        ("command: !!python/object/apply:os.system [ls]\n", "line 1: not understood"),
        ("- {a: 1}\n- {b: 2}\n", "line 1: a: there is no such field\njob.commonage.yml, line 2: b: there is"),
        ("x: &a [*a]\n", "there is no such field"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in wrong(tmp_path, text)


def test_large_ones_are_refused_unread(tmp_path: Path) -> None:
    assert "is 10.0 MiB; a job file has at most 1 MiB" in wrong(tmp_path, b"#" * 10 * 1024**2)
    assert "at most 1000 go into one file" in wrong(tmp_path, "- {command: x}\n" * 1001)


def test_none_there(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="there is no job file"):
        read(tmp_path / "gone.yml")
    with pytest.raises(Failure, match="there is no job file"):
        read(tmp_path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text("-:[]{}&*!|>'\"#%@`,? \nabc019", max_size=80).map(str.encode))
def test_nothing_crashes_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.yml"
    path.write_bytes(content)
    try:
        read(path)
    except Failure as failure:
        assert failure.format_message()
