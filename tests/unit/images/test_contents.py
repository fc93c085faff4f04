"""Contents of an image, from the output of the script in it."""

import json
import subprocess
from pathlib import Path

import pytest

from commonage.domain.images import Kernel, Package, Provenance, SourceFile
from commonage.images.contents import Commit, commit_of, context_files, labels, parse, provenance


def said(*kernels: tuple[str, object], server: str = "") -> str:
    parts = [f"\x1e{file}\x1f{json.dumps(spec)}" for file, spec in kernels]
    return "".join(parts) + f"\x1eserver\x1f{server}\n"


def test_kernels_and_their_environments() -> None:
    text = said(
        (
            "/usr/local/share/jupyter/kernels/torch/kernel.json",
            {"argv": ["/opt/k/torch/bin/python"], "display_name": "T"},
        ),
        ("/usr/share/jupyter/kernels/ir/kernel.json", {"argv": ["R", "--slave"]}),
        ("/usr/share/jupyter/kernels/python3/kernel.json", {"argv": ["/usr/bin/python3"], "display_name": "Python 3"}),
        server="/opt/commonage/server/bin/jupyterhub-singleuser",
    )
    kernels, server, _ = parse(text)
    assert kernels == (Kernel("torch", "T", "/opt/k/torch"), Kernel("ir", "ir"), Kernel("python3", "Python 3"))
    assert server == "/opt/commonage/server"


def test_a_server_on_the_usual_path_needs_no_folder() -> None:
    assert parse(said(server="/usr/local/bin/jupyterhub-singleuser")) == ((), "", ())


def test_without_a_server_no_session() -> None:
    assert parse(said()) == ((), None, ())


def test_the_first_of_a_name_counts_and_what_is_torn_does_not() -> None:
    text = said(
        ("/usr/local/share/jupyter/kernels/a/kernel.json", {"argv": ["/x/bin/python"]}),
        ("/usr/share/jupyter/kernels/a/kernel.json", {"argv": ["/y/bin/python"]}),
        ("/usr/share/jupyter/kernels/b/kernel.json", ["no", "object"]),
        ("/usr/share/jupyter/kernels/c d/kernel.json", {"argv": ["x"]}),
        ("/usr/share/jupyter/kernels/e/kernel.json", {"argv": []}),
    )
    assert parse(text)[0] == (Kernel("a", "a", "/x"),)


def test_packages_belong_to_the_python_of_their_kernel_and_apps_have_short_names() -> None:
    text = said(
        ("/usr/local/share/jupyter/kernels/torch/kernel.json", {"argv": ["/opt/k/torch/bin/commonage-kernel"]}),
        ("/usr/share/jupyter/kernels/python3/kernel.json", {"argv": ["/usr/bin/python3"]}),
        ("/usr/share/jupyter/kernels/ir/kernel.json", {"argv": ["/usr/bin/R"], "language": "R"}),
    )
    text += "\x1epackages /opt/k/torch\x1ftorch-2.13.0+cpu.dist-info\nNumPy-2.1.dist-info\n"
    text += "\x1epackages /usr\x1fpip-23.0.dist-info\n\x1eR\x1fdplyr-1.1.0\n\x1eapps\x1ftensorboard\nvncserver\n"
    text += "jupyter_server_proxy\njupyter_remote_desktop_proxy\n"
    kernels, _, apps = parse(text)
    assert {one.name: one.packages for one in kernels} == {
        "torch": (Package("NumPy", "2.1"), Package("torch", "2.13.0+cpu")),
        "python3": (Package("pip", "23.0"),),
        "ir": (Package("dplyr", "1.1.0"),),
    }
    assert apps == ("tensorboard", "desktop")


def test_labels_say_it_and_are_read_again() -> None:
    files = [SourceFile("torch.txt", "sha256:1")]
    known = labels("buildah 1.28.2", 1_790_000_000.5, files, Commit("abc1234", dirty=True))
    annotations = {
        "org.opencontainers.image.base.name": "debian:12",
        "org.opencontainers.image.base.digest": "sha256:2",
    }
    found = provenance(known, annotations)
    assert "@" in found.by
    assert (found.at, found.builder, found.files) == (1_790_000_000.0, "buildah 1.28.2", tuple(files))
    assert (found.base, found.base_digest, found.commit, found.dirty) == ("debian:12", "sha256:2", "abc1234", True)


def test_an_image_of_somebody_else_says_nothing() -> None:
    assert provenance({}, {}) == Provenance()
    torn = {"org.commonage.image.files": "[", "org.opencontainers.image.created": "yesterday"}
    assert provenance(torn, {}) == Provenance()


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_text("not of the build")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("b")
    (tmp_path / "a.txt").write_text("a")
    assert [one.path for one in context_files(tmp_path)] == ["a.txt", "sub/b.py"]
    for number in range(120):
        (tmp_path / f"{number}.txt").write_text("x")
    (many,) = context_files(tmp_path)
    assert many.path.startswith("122 files of the folder")
    (tmp_path / "0.txt").write_text("y")
    assert context_files(tmp_path) != [many]


@pytest.mark.needs("git")
def test_the_commit_and_whether_the_files_differ(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None

    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words],
            check=True,
            capture_output=True,
        )

    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first")
    first = commit_of(tmp_path)
    assert first is not None
    assert (len(first.id), first.dirty) == (40, False)
    (tmp_path / "a").write_text("2")
    assert commit_of(tmp_path) == Commit(first.id, dirty=True)
