"""Arguments of uv for this node, and the meaning of its output."""

import itertools
from pathlib import Path

import pytest

from commonage.engines.process.uv import Progress, read_pip_settings, uv_environment


def test_pips_settings_hold_for_uv_too() -> None:
    told = uv_environment({"PIP_INDEX_URL": "https://mirror.example/simple", "PIP_CERT": "/ca.pem"}, {})
    assert told["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert told["SSL_CERT_FILE"] == "/ca.pem"


def test_uvs_own_count_before_pips_and_variables_before_files() -> None:
    environ = {"UV_DEFAULT_INDEX": "https://uv.example", "PIP_INDEX_URL": "https://pip.example", "PIP_CERT": "/a"}
    told = uv_environment(environ, {"cert": "/b", "trusted-host": "mirror.example"})
    assert told["UV_DEFAULT_INDEX"] == "https://uv.example"
    assert told["SSL_CERT_FILE"] == "/a"
    assert told["UV_INSECURE_HOST"] == "mirror.example"


def test_several_indexes_are_all_looked_through_as_pip_does() -> None:
    told = uv_environment({}, {"extra-index-url": "\nhttps://a.example\nhttps://b.example"})
    assert told["UV_INDEX"] == "https://a.example https://b.example"
    assert told["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert "UV_INDEX_STRATEGY" not in uv_environment({}, {})


def test_folders_of_wheels_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    told = uv_environment({"PIP_FIND_LINKS": f"/not/there {tmp_path} https://wheels.example"}, {})
    assert told["UV_FIND_LINKS"] == f"{tmp_path},https://wheels.example"
    assert "UV_FIND_LINKS" not in uv_environment({"PIP_FIND_LINKS": "/not/there"}, {})


def test_nothing_else_of_the_server_reaches_uv() -> None:
    told = uv_environment(
        {"COMMONAGE_DATABASE_URL": "secret", "VIRTUAL_ENV": "/installation_filter", "HTTPS_PROXY": "p"}, {}
    )
    assert "COMMONAGE_DATABASE_URL" not in told
    assert "VIRTUAL_ENV" not in told
    assert told["HTTPS_PROXY"] == "p"
    assert told["UV_PYTHON_DOWNLOADS"] == "never"


def test_the_users_pip_file_counts_before_the_nodes(tmp_path: Path) -> None:
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text("[global]\nindex-url = https://user.example\n")
    assert read_pip_settings({"HOME": str(tmp_path)})["index-url"] == "https://user.example"
    named = tmp_path / "named.conf"
    named.write_text("[global]\nindex-url = https://named.example%20\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(named)}
    assert read_pip_settings(environ)["index-url"] == "https://named.example%20"


@pytest.mark.parametrize("content", [b"no section", b"\xff\xfe", b"[global\n"])
def test_a_pip_file_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "pip.conf"
    broken.write_bytes(content)
    read_pip_settings({"HOME": "/nonexistent", "PIP_CONFIG_FILE": str(broken)})


def test_progress_only_rises_and_is_told_in_words() -> None:
    told: list[tuple[str, float | None]] = []
    ticks = itertools.count(10, 10)
    progress = Progress(lambda words, part: told.append((words, part)), lambda: next(ticks))
    for line in (
        "Using Python 3.11.2 environment at: a",
        "Resolved 126 packages in 487ms",
        "Downloading numpy (16.1MiB)",
        "Downloading scipy (33.7MiB)",
        " Downloaded numpy",
        " Downloaded scipy",
        "Prepared 66 packages in 833ms",
        "Installed 126 packages in 1.07s",
        " + numpy==2.4.6",
    ):
        progress.line(line)
    assert told[0] == ("downloading 126 packages", 0.1)
    assert ("downloading scipy, 1 of 2 large packages are here", 0.1 + 0.4 / 2) in told
    assert told[-1] == ("compiling 126 packages, so that they start fast", 0.6)
    parts = [part for _, part in told if part is not None]
    assert parts[-1] == max(parts)


def test_frequent_progress_is_reported_once() -> None:
    told: list[str] = []
    progress = Progress(lambda words, part: told.append(words), lambda: 100.0)
    for name in ("numpy", "scipy", "matplotlib"):
        progress.line(f"Downloading {name} (10.0MiB)")
    progress.line("Prepared 3 packages in 1s")
    assert told == ["downloading numpy, 0 of 1 large packages are here", "installing 3 packages"]
