"""Sources of a tenant's environment, which are untrusted input."""

import subprocess
from pathlib import Path

import pytest

from commonage.catalogue.recipes import VARIANTS, recipe_names, shipped_recipe
from commonage.domain.builds import SourceKind
from commonage.images.sources import SourceError, clone, conda_requirements, found_file, requirements_of


def test_requirements_lose_comments_and_hashes() -> None:
    text = "# all\nnumpy==2.1 \\\n  --hash=sha256:aa \\\n  --hash=sha256:bb\n\ntqdm>=4  # bar\n"
    assert requirements_of(text) == ["numpy==2.1", "tqdm>=4"]


@pytest.mark.parametrize("line", ["-r other.txt", "--index-url=elsewhere", "-e ."])
def test_options_of_pip_are_refused(line: str) -> None:
    with pytest.raises(SourceError, match="is not supported"):
        requirements_of(f"numpy\n{line}\n")


def test_an_environment_of_conda_becomes_requirements() -> None:
    text = """
name: course
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip
  - numpy=2.1
  - conda-forge::pandas>=2,<3
  - scipy==1.14.1
  - pytorch
  - tqdm=4.66.1=pyhd8ed1ab_0
  - pip:
      - transformers>=4
"""
    found = conda_requirements(text, (3, 11))
    assert found == [
        "numpy==2.1.*", "pandas>=2,<3", "scipy==1.14.1", "torch", "tqdm==4.66.1", "transformers>=4"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dependencies: [python=3.9]", "requires `python=3.9`"),
        ("dependencies: [numpy, r-base, cudatoolkit=11.8]", "names r-base, cudatoolkit=11.8"),
        ("dependencies: [{conda: [x]}]", "PyPI has no such packages"),
        ("name: x", "no list `dependencies`"),
        ("a: [", "not valid YAML"),
        ("!!python/object/apply:os.system [id]", "not valid YAML"),
    ],
)
def test_what_only_conda_has_is_named(text: str, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        conda_requirements(text, (3, 11))


def repository(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return folder


def test_a_repository_is_built_from_its_most_specific_file(tmp_path: Path) -> None:
    source = repository(tmp_path / "source", requirements_txt="numpy\n", environment_yml="dependencies: []\n")
    copy = tmp_path / "copy"
    assert len(clone(f"file://{source}", "", copy, protocols="file")) == 40
    assert found_file(copy) == (SourceKind.ENVIRONMENT, copy / "environment.yml")


def test_a_repository_is_fetched_by_https_only(tmp_path: Path) -> None:
    source = repository(tmp_path / "source", requirements_txt="numpy\n")
    with pytest.raises(SourceError, match=r"git says: .*transport 'file' not allowed"):
        clone(f"file://{source}", "", tmp_path / "copy")


def test_a_link_in_a_repository_leads_nowhere(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "requirements.txt").symlink_to("/etc/passwd")
    with pytest.raises(SourceError, match="none of these files"):
        found_file(source)


@pytest.mark.parametrize("name", recipe_names())
def test_the_variants_of_a_recipe_differ_by_one_line_of_each_kernel(name: str) -> None:
    cpu, cuda = (shipped_recipe(name, variant) for variant in VARIANTS)
    for kernel, lines in cpu.kernels.items():
        assert len(set(lines) ^ set(cuda.kernels[kernel])) in (0, 2)
    assert cuda.uses_cuda == (cpu.kernels != cuda.kernels)
    assert not cpu.uses_cuda
