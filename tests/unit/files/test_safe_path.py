"""Files below a folder that another user writes to: no path leads out of the folder."""

import errno
import os
import secrets
import shutil
import stat
from pathlib import Path

import pytest

from commonage.files.safe_path import SafePath, absolute


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    (folder / "below").mkdir(parents=True)
    (folder / "key").write_text("secret")
    return folder


@pytest.fixture
def shared(tmp_path: Path, elsewhere: Path) -> SafePath:
    root = tmp_path / "shared"
    root.mkdir()
    (root / "link").symlink_to(elsewhere)
    (root / "file-link").symlink_to(elsewhere / "key")
    os.mkfifo(root / "pipe")
    return SafePath(root)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b"])
def test_no_name_leads_elsewhere(shared: SafePath, name: str) -> None:
    with pytest.raises(ValueError, match="not the name"):
        shared / name


def test_folders_and_files_are_made_and_found(shared: SafePath) -> None:
    place = shared / "a" / "b" / "c"
    assert place.parent.make_folder(parents=True)
    assert not place.parent.make_folder(parents=True)
    place.write(b"one")
    place.write(b"two", 0o644)
    assert (place.read(9), stat.S_IMODE(place.stat().st_mode)) == (b"two", 0o644)
    assert place.parent.list_names() == ["c"]
    place.move(shared / "moved")
    assert (place.exists(), (shared / "moved").read(2)) == (False, b"tw")


@pytest.mark.parametrize("way", ["link", "file-link", "pipe"])
def test_only_a_plain_file_is_opened(shared: SafePath, way: str) -> None:
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC):
        with pytest.raises(OSError, match=r"link|plain"):
            (shared / way).open(flags)
    with pytest.raises(FileExistsError):
        (shared / way).open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def test_a_device_is_not_opened(shared: SafePath) -> None:
    os.mknod(shared.root / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with pytest.raises(OSError, match="no plain file"):
        (shared / "device").open(os.O_RDONLY)


def test_no_link_on_the_way_is_followed(shared: SafePath, elsewhere: Path) -> None:
    inside = shared / "link" / "below"
    attempts = [
        lambda: (shared / "link" / "key").read(9),
        lambda: (shared / "link" / "new").write(b"x"),
        lambda: (shared / "link" / "new").make_folder(parents=True),
        lambda: (shared / "link").make_folder(parents=True),
        lambda: (shared / "link" / "key").chown(0, 0),
        lambda: (shared / "link" / "key").move(shared / "taken"),
        (shared / "link").list_names,
        inside.remove,
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="link") as caught:
            attempt()
        assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)
    assert not inside.exists()
    assert sorted(os.listdir(elsewhere)) == ["below", "key"]


def test_what_replaces_a_link_leaves_alone_where_it_led(shared: SafePath, elsewhere: Path) -> None:
    (shared / "file-link").write(b"mine")
    assert (elsewhere / "key").read_text() == "secret"
    assert (shared / "file-link").read(9) == b"mine"
    (shared / "link").remove()
    assert sorted(os.listdir(elsewhere)) == ["below", "key"]


def test_a_tree_is_removed_however_deep_it_is_and_no_link_in_it_is_followed(shared: SafePath, elsewhere: Path) -> None:
    deepest = shared / "tree"
    deepest.make_folder()
    descriptor = os.open(deepest.path, os.O_RDONLY)
    for _ in range(3000):  # deeper than a path can be, or a program can call itself
        os.mkdir("d", dir_fd=descriptor)
        os.symlink(elsewhere, "link", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    (shared / "tree").remove()
    (shared / "tree").remove()
    assert not (shared / "tree").exists()
    assert sorted(os.listdir(elsewhere)) == ["below", "key"]


def test_a_folder_to_which_somebody_goes_on_writing_is_given_up(
    shared: SafePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = shared / "tree"
    (tree / "below").make_folder(parents=True)
    (tree / "below" / "a").write(b"")
    unlink = os.unlink

    def unlink_and_write(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        (tree / secrets.token_hex(4)).write(b"")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink_and_write)
        with pytest.raises(OSError, match="continues to write") as raised:
            tree.remove(within_s=0.1)
    assert raised.value.errno == errno.ETIMEDOUT and tree.exists()
    tree.remove()
    assert not tree.exists()


def test_names_of_a_large_folder_are_not_read_at_once(shared: SafePath, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = shared / "tree"
    (tree / "below").make_folder(parents=True)
    for number in range(2000):
        (tree / "below" / str(number)).write(b"")
    monkeypatch.delattr(os, "listdir")
    tree.remove()
    assert not tree.exists()


def test_of_an_absolute_path_no_part_may_be_a_link(tmp_path: Path, shared: SafePath, elsewhere: Path) -> None:
    assert absolute(elsewhere / "key").read(9) == b"secret"
    with pytest.raises(OSError, match="link"):
        absolute(shared.root / "link" / "key").read(9)
    for path in (Path("relative"), tmp_path / ".." / "up"):
        with pytest.raises(ValueError, match=r"path|name"):
            absolute(path)


def test_the_way_to_the_root_may_have_links(tmp_path: Path, shared: SafePath) -> None:
    (tmp_path / "way").symlink_to(shared.root)
    (SafePath(tmp_path / "way") / "new").write(b"x")
    assert (shared.root / "new").read_bytes() == b"x"
    shutil.rmtree(shared.root)
