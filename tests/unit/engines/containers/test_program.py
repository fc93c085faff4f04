"""Orders as programs in a container: whose variables win, what of this machine is known inside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.nodes import Allocation, Share
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.containers.program import (
    CONTAINER_SESSION,
    ContainerNetwork,
    Program,
    program_of,
    shared_variables,
)
from commonage.engines.rundir.programs import SESSION_COMMAND
from commonage.engines.rundir.serving import global_folder

INSIDE = ContainerNetwork("10.213.0.1", frozenset({8081}))


def request(**changes: object) -> StartRequest:
    fields: dict[str, object] = {
        "attempt_id": "w-1",
        "workload_id": "w",
        "kind": Kind.JOB,
        "name": "",
        "owner": "Ada L",
        "tenant": "lab",
        "environment": Environment("e", "E", image="i", variables=(("FROM", "environment"),)),
        "command": ("run",),
        "allocation": Allocation("w-1", "local", "here", 1500, 64, (), 0.0),
        **changes,
    }
    return StartRequest(**fields)  # type: ignore[arg-type]  # fields of an order


def program(**changes: object) -> Program:
    return program_of(request(**changes), INSIDE, {}, {"NVIDIA_GPU_MEMORY_LIMIT": "64"})


def test_later_ones_win_and_our_ids_are_ours() -> None:
    made = program(
        variables=(("FROM", "owner"), ("COMMONAGE_TENANT", "mine")),
        secrets=(("COMMONAGE_USER", "root"), ("NVIDIA_GPU_MEMORY_LIMIT", "9"), ("KEY", "x"), ("a.b", "y")),
    )
    assert made.variables["FROM"] == "owner"
    assert made.variables["COMMONAGE_TENANT"] == "lab"
    assert made.variables["COMMONAGE_USER"] == "Ada L"
    assert made.variables["NVIDIA_GPU_MEMORY_LIMIT"] == "64"
    assert made.variables["a.b"] == "y", "no shell takes it, so it cannot come by file"
    assert dict(made.secrets) == {"KEY": "x"}
    assert "KEY" not in made.variables


def share(uuid: str, *, simulated: bool = False) -> Share:
    return Share(uuid, 0, "A100", 1024, 250, False, 40960, simulated=simulated)


def with_shares(*shares: Share) -> dict[str, object]:
    return {"allocation": Allocation("w-1", "local", "here", 1500, 64, shares, 0.0)}


@pytest.mark.parametrize(
    ("shares", "seen"),
    [
        ((), "void"),
        ((share("GPU-SIM-1", simulated=True),), "void"),
        ((share("GPU-b"), share("GPU-a"), share("GPU-b")), "GPU-b,GPU-a"),
        ((share("GPU-SIM-1", simulated=True), share("GPU-b")), "GPU-b"),
    ],
)
def test_visible_gpus_come_from_shares_only(shares: tuple[Share, ...], seen: str) -> None:
    widened = (("NVIDIA_VISIBLE_DEVICES", "all"),)
    environment = Environment("e", "E", image="i", variables=widened)
    made = program(variables=widened, environment=environment, **with_shares(*shares))
    assert made.variables["NVIDIA_VISIBLE_DEVICES"] == seen
    hidden = program(secrets=widened, **with_shares(*shares))
    assert hidden.variables["NVIDIA_VISIBLE_DEVICES"] == seen, "a secret is set within: the image would count"
    assert not hidden.secrets


def test_environment_may_request_more_than_gpus() -> None:
    asked = (("NVIDIA_MOFED", "enabled"), ("NVIDIA_GDS", "enabled"))
    environment = Environment("e", "E", image="i", variables=(("NVIDIA_MOFED", "enabled"),))
    made = program(variables=asked, environment=environment)
    assert made.variables["NVIDIA_MOFED"] == "enabled"
    assert "NVIDIA_GDS" not in made.variables
    assert "NVIDIA_GDS" in made.env, "a name alone, which takes away what the image sets"
    assert "NVIDIA_MOFED" not in made.env
    assert not program(secrets=asked).secrets


def test_a_secret_covers_a_variable_of_its_name() -> None:
    made = program(variables=(("KEY", "plain"),), secrets=(("KEY", "x"),))
    assert "KEY" not in made.variables
    assert made.secrets["KEY"] == "x"


def test_the_loopback_of_this_node_has_another_name_inside() -> None:
    urls = (("HUB", "http://127.0.0.1:8081/hub http://localhost:8081"), ("OTHER", "http://127.0.0.1:9/"))
    made = program(variables=urls)
    assert made.variables["HUB"] == "http://10.213.0.1:8081/hub http://10.213.0.1:8081"
    assert made.variables["OTHER"] == "http://127.0.0.1:9/"


def test_service_listens_on_all_interfaces() -> None:
    made = program(wants_port=True, variables=(("URL", "http://127.0.0.1:{port}/x"),), command=("serve", "{port}"))
    assert made.variables["URL"] == "http://0.0.0.0:8888/x"
    assert made.variables["COMMONAGE_PORT"] == "8888"
    assert made.command == ("serve", "8888")
    assert program(variables=(("X", "{port}"),)).variables["X"] == "{port}"


def test_a_job_with_files_works_among_them() -> None:
    home = program().home
    assert home.startswith("/home/ada-l~")
    assert program().cwd == home
    assert program(bundle_path="/b.tar.gz").cwd == f"{home}/jobs/w"


def test_a_session_needs_no_command_and_a_job_does() -> None:
    assert program(kind=Kind.SESSION, command=()).command == CONTAINER_SESSION
    with pytest.raises(EngineFailure, match="nothing to run"):
        program(command=())


def test_of_the_servers_variables_only_those_that_hold_inside_are_shared() -> None:
    installation_filter = {
        "TZ": "UTC",
        "HTTPS_PROXY": "http://proxy:3128",
        "http_proxy": "http://127.0.0.1:3128",
        "ALL_PROXY": "localhost:1",
        "SSL_CERT_FILE": "/etc/installation_filter.pem",
        "COMMONAGE_DATABASE_URL": "secret",
    }
    assert shared_variables(installation_filter) == {"TZ": "UTC", "HTTPS_PROXY": "http://proxy:3128"}


TAKES_LONG = """
import atexit, sys, threading, time
class Slow:
    def __del__(self, write=print): write("taken apart")
kept = Slow()
atexit.register(lambda: print("asked at exit", flush=True))
print("in", sys.path[0], sys.argv[0], *sys.argv[1:])
"""


def run(folder: Path, server: str | None, within: Path | None = None) -> subprocess.CompletedProcess[str]:
    if server is not None:
        (folder / SESSION_COMMAND[0]).write_text(server)
        (folder / SESSION_COMMAND[0]).chmod(0o755)
    path = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.run(
        CONTAINER_SESSION, env=path, capture_output=True, text=True, timeout=60, cwd=within, check=False
    )


def python(text: str) -> str:
    return f"#!{sys.executable}\n{TAKES_LONG}{text}"


def test_it_runs_the_server_and_leaves_before_its_memory_is_taken_apart(tmp_path: Path) -> None:
    done = run(tmp_path, python("threading.Thread(target=lambda: (time.sleep(0.3), print('waited for'))).start()"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"in {tmp_path} {tmp_path / SESSION_COMMAND[0]} {' '.join(SESSION_COMMAND[1:])}",
        "waited for",
        "asked at exit",
    ]


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no hub there')", 1, "no hub there"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
    ],
)
def test_exit_code_and_output_are_the_programs_own(tmp_path: Path, end: str, code: int, says: str) -> None:
    done = run(tmp_path, python(end))
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert "asked at exit" in done.stdout


def test_files_of_the_users_do_not_stand_in_for_pythons(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("runpy", "atexit", "os", "random"):
        (home / f"{name}.py").write_text("raise SystemExit('that of the user')")
    done = run(tmp_path, python("import random"), within=home)
    assert (done.returncode, done.stderr) == (0, "")


def test_non_python_program_runs_unchanged(tmp_path: Path) -> None:
    assert run(tmp_path, '#!/bin/sh\necho "shell $*"').stdout == f"shell {' '.join(SESSION_COMMAND[1:])}\n"


def test_an_image_without_a_server_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, None)
    assert done.returncode == 127
    assert f"{SESSION_COMMAND[0]}: not found" in done.stderr


def pages(folder: Path, singleuser: str) -> None:
    """A fake JupyterHub package, whose tables record when they are read."""
    for name, text in {
        "__init__": "",
        "singleuser": singleuser,
        "orm": "print('tables are read')\nclass Base: made = 'a table'\n",
        "handlers/__init__": "",
        "handlers/pages": "print('pages are read')\nclass HealthCheckHandler: made = 'a page'\n",
    }.items():
        (folder / "jupyterhub" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "jupyterhub" / f"{name}.py").write_text(text)


USED = "print('runs')\nimport jupyterhub.singleuser\n"
LEFT_OUT = (
    "from . import orm\nfrom .handlers.pages import HealthCheckHandler\nprint(isinstance(1, HealthCheckHandler))\n"
)


def test_hub_only_modules_are_not_imported(tmp_path: Path) -> None:
    pages(tmp_path, LEFT_OUT)
    assert run(tmp_path, f"#!{sys.executable}\n{USED}").stdout.split("\n") == ["False", "runs", ""]


def test_lazy_module_is_imported_on_use(tmp_path: Path) -> None:
    pages(tmp_path, LEFT_OUT + "def later(): print(orm.Base.made)\n")
    asks = "from jupyterhub.handlers.pages import HealthCheckHandler\nprint(HealthCheckHandler.made)\n"
    done = run(tmp_path, f"#!{sys.executable}\n{USED}jupyterhub.singleuser.later()\n{asks}")
    assert done.stdout.splitlines() == ["False", "runs", "tables are read", "a table", "pages are read", "a page"]


def test_a_version_that_needs_it_at_once_has_it(tmp_path: Path) -> None:
    pages(tmp_path, "from . import orm\nclass Mine(orm.Base): pass\nprint(Mine.made)\n")
    assert run(tmp_path, f"#!{sys.executable}\n{USED}").stdout.splitlines() == ["tables are read", "a table", "runs"]


def test_a_database_that_is_needed_at_once_is_whole(tmp_path: Path) -> None:
    pages(tmp_path, "from sqlalchemy.exc import SQLAlchemyError\nimport sqlalchemy\nprint(sqlalchemy.error)\n")
    (tmp_path / "sqlalchemy").mkdir()
    (tmp_path / "sqlalchemy/exc.py").write_text("class SQLAlchemyError(Exception): made = 'an error'\n")
    (tmp_path / "sqlalchemy/__init__.py").write_text("from .exc import SQLAlchemyError\nerror = SQLAlchemyError.made\n")
    assert run(tmp_path, f"#!{sys.executable}\n{USED}").stdout.splitlines() == ["an error", "runs"]


def test_version_that_needs_the_module_is_reimported(tmp_path: Path) -> None:
    pages(tmp_path, LEFT_OUT + "print(HealthCheckHandler.made)\n")
    done = run(tmp_path, f"#!{sys.executable}\n{USED}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["False", "runs", "tables are read", "pages are read", "False", "a page"]


def test_a_server_does_not_ask_node(tmp_path: Path) -> None:
    pages(tmp_path, "")
    for name, text in {
        "jupyterlab/__init__": "",
        "jupyterlab/commands": "def _yarn_config(logger): raise SystemExit('node was started')\n",
        "jupyter_lsp/__init__": "",
        "jupyter_lsp/types": "class LanguageServerManagerAPI:\n"
        "    def _npm_prefix(self, npm): raise SystemExit('npm was started')\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    program = (
        "from jupyterlab import commands\nfrom jupyter_lsp.types import LanguageServerManagerAPI as Api\n"
        "print(commands._yarn_config(None)['yarn config'], Api()._npm_prefix('/opt/node/bin/npm'))\n"
    )
    assert run(tmp_path, f"#!{sys.executable}\n{program}").stdout == "{} /opt/node\n"


@pytest.mark.parametrize(
    ("variable", "npmrc", "npm", "folder"),
    [
        ("", "", "/opt/conda/bin/npm", "/opt/conda"),
        ("", "", "/usr/bin/npm", "/usr/local"),
        ("", "color=always\nprefix = ~/npm\n", "/usr/bin/npm", "{home}/npm"),
        ("", "prefix=${HOME}/npm\n", "/usr/bin/npm", "{home}/npm"),
        ("/scratch/npm", "prefix=~/npm\n", "/usr/bin/npm", "/scratch/npm"),
    ],
)
def test_global_folder_of_npm_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, npmrc: str, npm: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("npm_config_prefix", raising=False)
    monkeypatch.setenv("NPM_CONFIG_PREFIX", variable)
    (tmp_path / ".npmrc").write_text(npmrc)
    assert global_folder(npm) == folder.format(home=tmp_path)
