"""Refusals of `commonage image build` before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from commonage.cli import main
from commonage.images.base import debian_suites


def build(tmp_path: Path, *arguments: str) -> Result:
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "home"), "COMMONAGE_URL": "http://127.0.0.1:9", "PATH": ""}
    return CliRunner().invoke(main, ["image", "build", "-t", "lab/x", *arguments], env=environ, prog_name="commonage")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "Containerfile").write_text("FROM scratch\n")
    (tmp_path / "list.txt").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-f", "{}/missing"), "{}/missing does not exist. -f takes a Containerfile."),
        (("-f", "{}"), "{} is a folder. -f takes a Containerfile."),
        (("{}",), "nothing to build from. Give requirements (-r or --kernel), or a Containerfile (-f). "),
        (("{}",), "{} has one: -f {}/Containerfile"),
        (("-f", "{}/Containerfile", "-r", "{}/list.txt"), "nothing to build from"),
        (
            ("-f", "{}/Containerfile", "--apt", "git", "--no-server"),
            "--apt and --no-server has no effect with a Containerfile",
        ),
        (("-f", "{}/Containerfile", "--base", "x"), "--base has no effect with a Containerfile. Change {}/Container"),
        (("-f", "{}/Containerfile"), "buildah is not installed. Run: apt-get install buildah"),
    ],
)
def test_invalid_build_is_refused(context: Path, arguments: tuple[str, ...], says: str) -> None:
    done = build(context, *(one.replace("{}", str(context)) for one in arguments))
    assert (done.exit_code, done.stdout) == (2, "")
    assert says.replace("{}", str(context)) in done.stderr


def test_debian_base_of_containerfile_is_found() -> None:
    text = """
    ARG x=1
    FROM --platform=linux/amd64 localhost/commonage/debian:bookworm AS made
    RUN echo FROM localhost/commonage/debian:none
    from localhost/commonage/debian:trixie
    FROM localhost/commonage/debian:bookworm
    FROM localhost/commonage/debian:
    FROM debian:bookworm
    """
    assert debian_suites(text) == ["bookworm", "trixie"]
