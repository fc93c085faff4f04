"""What `commonage image build` refuses before anything is built."""

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
        (("-f", "{}/missing"), "{}/missing is not there; -f names the Containerfile"),
        (("-f", "{}"), "{} is a folder; -f names the Containerfile"),
        (("{}",), "say what to build from: either -r or --kernel with lists of requirements, or -f Containerfile; in"),
        (("{}",), "in {} there is one: -f {}/Containerfile"),
        (("-f", "{}/Containerfile", "-r", "{}/list.txt"), "say what to build from"),
        (("-f", "{}/Containerfile", "--apt", "git", "--no-server"), "--apt and --no-server would change nothing"),
        (("-f", "{}/Containerfile", "--base", "x"), "--base would change nothing: what is in the image {}/Container"),
        (("-f", "{}/Containerfile"), "images are built with buildah, which is not installed; run: apt-get install"),
    ],
)
def test_what_cannot_be_built_says_why(context: Path, arguments: tuple[str, ...], says: str) -> None:
    done = build(context, *(one.replace("{}", str(context)) for one in arguments))
    assert (done.exit_code, done.stdout) == (2, "")
    assert says.replace("{}", str(context)) in done.stderr


def test_the_debian_that_a_containerfile_stands_on_is_known() -> None:
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
