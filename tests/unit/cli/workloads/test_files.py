"""Choice of the files to send: not those that git ignores, nor folders of tools; never too many, or from elsewhere."""

import subprocess
from pathlib import Path

import pytest

from commonage.cli.errors import Failure
from commonage.cli.workloads import files
from commonage.cli.workloads.files import files_to_send


def write(folder: Path, **content: str) -> None:
    """Names have `__` for a slash and `_dot_` for a dot."""
    for name, text in content.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_folders_of_tools_are_excluded(tmp_path: Path) -> None:
    write(tmp_path, train_dot_py="x", data__a_dot_csv="1", _dot_venv__bin__python="")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_text("")
    assert set(files_to_send(tmp_path)) == {"train.py", "data/a.csv"}


@pytest.mark.needs("git")
def test_files_that_git_ignores_or_that_were_deleted_are_excluded(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write(tmp_path, _dot_gitignore="*.ckpt\n", train_dot_py="x", big_dot_ckpt="y", sub__more_dot_py="z")
    assert set(files_to_send(tmp_path)) == {".gitignore", "train.py", "sub/more.py"}
    assert set(files_to_send(tmp_path / "sub")) == {"more.py"}
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "train.py").unlink()
    assert set(files_to_send(tmp_path)) == {".gitignore", "sub/more.py"}


def test_only_named_files_are_sent(tmp_path: Path) -> None:
    write(tmp_path, a="1", b="2", c__d="3", c__e="4")
    assert set(files_to_send(tmp_path, ["a", "c"])) == {"a", "c/d", "c/e"}
    with pytest.raises(Failure, match="no file or folder 'gone'"):
        files_to_send(tmp_path, ["gone"])
    with pytest.raises(Failure, match="is outside of"):
        files_to_send(tmp_path / "c", ["../a"])


def test_links_out_of_folder_are_excluded(tmp_path: Path) -> None:
    write(tmp_path, secret="s", in__a="1")
    (tmp_path / "in" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "in" / "same").symlink_to(tmp_path / "in" / "a")
    (tmp_path / "in" / "dead").symlink_to(tmp_path / "gone")
    assert set(files_to_send(tmp_path / "in")) == {"a", "same"}


def test_too_large_folder_is_refused_with_largest_files(tmp_path: Path) -> None:
    with (tmp_path / "model.bin").open("wb") as sparse:
        sparse.truncate(70 * 1024**2)
    write(tmp_path, small="x")
    with pytest.raises(Failure) as caught:
        files_to_send(tmp_path)
    message = caught.value.format_message()
    assert "the 2 files of this folder have 70 MiB; at most 64 MiB can be sent" in message
    assert "70 MiB  model.bin" in message
    assert "--no-files" in message
    assert set(files_to_send(tmp_path, ["small"])) == {"small"}


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    write(tmp_path, a="", b="", c="")
    with pytest.raises(Failure, match="more than 2 files"):
        files_to_send(tmp_path)


@pytest.mark.parametrize("is_git", [False, pytest.param(True, marks=pytest.mark.needs("git"))])
def test_data_folder_of_server_is_never_sent(tmp_path: Path, is_git: bool) -> None:
    if is_git:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write(tmp_path, train_dot_py="x", site__commonage_dot_lock="", site__secrets__hub="s", site2__a="kept")
    assert set(files_to_send(tmp_path)) == {"train.py", "site2/a"}
