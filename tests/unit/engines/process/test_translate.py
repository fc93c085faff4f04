"""From an order to a program."""

from dataclasses import replace
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.nodes import Allocation
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.process.translate import ProcessContext, Program, enforced, program_of, shared_variables, url_of
from commonage.files.injected import JUPYTER

PLACE = ProcessContext(Path("/w/ada"), Path("/w/ada"), Path("/r/a-1/tmp"), Path("/e/base/bin"), Path("/e/base"), None)
REQUEST = StartRequest(
    attempt_id="a-1",
    workload_id="a",
    kind=Kind.JOB,
    name="train",
    owner="ada",
    tenant="lab",
    environment=Environment("base", "Base", variables=(("WHO", "environment"), ("KEPT", "yes"))),
    command=("python", "train.py"),
    allocation=Allocation("a-1", "local", "here", 1500, 1024, (), 0.0),
)


def test_a_workload_finds_itself_in_its_variables() -> None:
    variables = program_of(REQUEST, PLACE, {"LANG": "de_DE.UTF-8"}).variables
    assert variables["COMMONAGE_ATTEMPT_ID"] == "a-1"
    assert variables["COMMONAGE_WORKLOAD_ID"] == "a"
    assert variables["COMMONAGE_USER"] == variables["USER"] == "ada"
    assert variables["HOME"] == "/w/ada"
    assert variables["TMPDIR"] == "/r/a-1/tmp"
    assert variables["VIRTUAL_ENV"] == "/e/base"
    assert variables["PATH"].split(":")[0] == "/e/base/bin"
    assert variables["LANG"] == "de_DE.UTF-8"


def test_threads_are_as_many_as_cores_were_asked_for() -> None:
    assert program_of(REQUEST, PLACE, {}).variables["OMP_NUM_THREADS"] == "2"
    tiny = replace(REQUEST, allocation=replace(REQUEST.allocation, cpus_milli=100))
    assert program_of(tiny, PLACE, {}).variables["OMP_NUM_THREADS"] == "1"


def test_later_variables_win_but_ids_are_ours() -> None:
    request = replace(
        REQUEST,
        variables=(("WHO", "owner"), ("OMP_NUM_THREADS", "8"), ("COMMONAGE_ATTEMPT_ID", "forged")),
        secrets=(("COMMONAGE_USER", "root"),),
    )
    variables = program_of(request, PLACE, {"WHO": "shared"}).variables
    assert (variables["WHO"], variables["KEPT"]) == ("owner", "yes")
    assert variables["OMP_NUM_THREADS"] == "8"
    assert (variables["COMMONAGE_ATTEMPT_ID"], variables["COMMONAGE_USER"]) == ("a-1", "ada")


def test_jupyters_defaults_come_after_what_the_user_names() -> None:
    session = replace(REQUEST, kind=Kind.SESSION)
    assert "JUPYTER_CONFIG_PATH" not in program_of(REQUEST, PLACE, {}).variables
    assert program_of(session, PLACE, {}).variables["JUPYTER_CONFIG_PATH"] == str(JUPYTER)
    own = replace(session, variables=(("JUPYTER_CONFIG_PATH", "/w/ada/etc"),))
    assert program_of(own, PLACE, {}).variables["JUPYTER_CONFIG_PATH"] == f"/w/ada/etc:{JUPYTER}"


def test_port_placeholder_is_replaced() -> None:
    request = replace(
        REQUEST,
        command=("serve", "--port={port}"),
        variables=(("URL", "http://x:{port}/"),),
        secrets=(("S", "{port}"),),
    )
    program = program_of(request, replace(PLACE, port=20_001), {})
    assert program.command == ("serve", "--port=20001")
    assert (program.variables["URL"], program.variables["S"]) == ("http://x:20001/", "20001")
    assert program.variables["COMMONAGE_PORT"] == "20001"
    assert url_of(20_001) == "http://127.0.0.1:20001"


def test_without_a_port_braces_are_left_alone() -> None:
    program = program_of(replace(REQUEST, command=("echo", "{port}")), PLACE, {})
    assert program.command == ("echo", "{port}")
    assert url_of(None) is None


def test_a_session_without_a_command_is_a_jupyter_server() -> None:
    program = program_of(replace(REQUEST, kind=Kind.SESSION, command=()), PLACE, {})
    assert program.command[0] == "jupyterhub-singleuser"


def test_a_job_without_a_command_is_refused() -> None:
    with pytest.raises(EngineFailure, match="nothing to run"):
        program_of(replace(REQUEST, command=()), PLACE, {})


def test_a_program_outside_a_virtual_environment_is_not_told_of_one() -> None:
    assert "VIRTUAL_ENV" not in program_of(REQUEST, replace(PLACE, python_root=None), {}).variables


def test_only_language_time_certificates_and_proxies_are_shared() -> None:
    environ = {
        "LANG": "C", "LC_ALL": "C", "TZ": "UTC", "SSL_CERT_FILE": "x", "https_proxy": "p", "NO_PROXY": "n",
        "PATH": "/secret", "COMMONAGE_DATABASE_URL": "s", "AWS_SECRET_ACCESS_KEY": "s", "PYTHONPATH": "s",
    }  # fmt: skip
    assert set(shared_variables(environ)) == {"LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "https_proxy", "NO_PROXY"}


def test_share_variables_win_and_own_pythonpath_follows() -> None:
    program = Program(("true",), {"PYTHONPATH": "/mine", "CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"})
    held = enforced(program, {"PYTHONPATH": "/installation_filter", "CUDA_MPS_PIPE_DIRECTORY": "/mps"})
    assert held.variables == {"PYTHONPATH": "/installation_filter:/mine", "CUDA_MPS_PIPE_DIRECTORY": "/mps"}
    assert enforced(Program(("true",), {}), {"PYTHONPATH": "/installation_filter"}).variables == {
        "PYTHONPATH": "/installation_filter"
    }


def test_volumes_are_found_by_variables() -> None:
    context = replace(PLACE, volumes={"data-sets": "/w/ada/volumes/data-sets"})
    assert program_of(REQUEST, context, {}).variables["COMMONAGE_VOLUME_DATA_SETS"] == "/w/ada/volumes/data-sets"
