"""The apps of an environment: the catalogue names those that its sessions offer."""

import os
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from commonage.catalogue.apps import known_apps
from commonage.engines.process.contents import read_contents
from commonage.engines.process.translate import PATH
from commonage.files.apps import apps_in, apps_of_environments, modules
from commonage.files.injected import JUPYTER
from commonage.images.contents import _SCRIPT, parse

OFFER = """
import importlib.util, sys
from unittest.mock import MagicMock
spec = importlib.util.spec_from_file_location("config", sys.argv[1])
config = importlib.util.module_from_spec(spec)
spec.loader.exec_module(config)
print(*config.offer_apps(MagicMock(), sys.argv[2]))
"""
PROXY, DESKTOP = "jupyter_server_proxy", "jupyter_remote_desktop_proxy"
PROGRAMS = ("tensorboard", "visdom", "code-server", "rserver", "vncserver")


def made(folder: Path, programs: Sequence[str], found_modules: Sequence[str]) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    for name in ("jupyterhub-singleuser", *programs):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in found_modules:
        (packages / name).mkdir()
        (packages / name / "__init__.py").touch()
    return folder


def said(*command: str | Path, path: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("COMMONAGE_", "PYTHON"))}
    done = subprocess.run(command, env={**variables, "PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("programs", "found_modules", "apps"),
    [
        (PROGRAMS, (PROXY, DESKTOP), ("tensorboard", "visdom", "code-server", "rstudio", "desktop")),
        (PROGRAMS, (PROXY,), ("tensorboard", "visdom", "code-server", "rstudio")),
        (PROGRAMS, (DESKTOP,), ()),
        (("visdom",), (PROXY,), ("visdom",)),
        (("Xtigervnc",), (PROXY,), ()),
    ],
)
def test_the_catalogue_names_the_apps_that_a_session_offers(
    tmp_path: Path, programs: Sequence[str], found_modules: Sequence[str], apps: tuple[str, ...]
) -> None:
    folder = made(tmp_path / "env", programs, found_modules)
    path = f"{folder}/bin:{PATH}"
    config = JUPYTER / "jupyter_server_config.py"
    offered = said(folder / "bin" / "python", "-c", OFFER, config, tmp_path, path=path).split()
    assert offered == ["terminal", *apps]
    assert read_contents(folder, ()).apps == apps
    assert parse(said("/bin/sh", "-c", _SCRIPT, path=path))[2] == apps


def test_an_image_without_a_server_has_no_apps(tmp_path: Path) -> None:
    folder = made(tmp_path / "env", PROGRAMS, (PROXY,))
    (folder / "bin" / "jupyterhub-singleuser").unlink()
    assert parse(said("/bin/sh", "-c", _SCRIPT, path=f"{folder}/bin:{PATH}"))[1:] == (None, ())


def test_programs_of_a_folder_of_their_own_are_found() -> None:
    """As RStudio's, which is on no search path."""
    (rstudio,) = [app for app in apps_of_environments() if app.name == "rstudio"]
    assert rstudio.folders
    assert f'PATH="$path:{rstudio.folders[0]}" command -v rserver' in _SCRIPT


def test_every_app_has_a_title_and_only_the_terminal_needs_nothing() -> None:
    named = [one.name for one in apps_of_environments()]
    assert [one.name for one in known_apps()] == ["terminal", *named]
    assert apps_in({*PROGRAMS, *modules()}) == tuple(named)
    assert apps_in(set()) == ()
