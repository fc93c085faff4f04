"""From lists of requirements to a Containerfile."""

import json

import pytest

from commonage.files.kernels import DEFAULT_KERNEL, kernel_spec, kernel_title
from commonage.images.recipe import (
    Kernel,
    Recipe,
    RecipeError,
    check_kernel,
    check_package,
    containerfile,
    step_title,
    uv_settings,
)

TORCH, JAX = Kernel("torch", "sha256:1"), Kernel("jax", "sha256:2")


def test_each_kernel_is_a_layer_with_an_environment_of_its_own() -> None:
    lines = containerfile(Recipe("debian:12", (TORCH, JAX), server="sha256:3")).splitlines()
    assert lines[0] == "FROM debian:12"
    kernels = [line for line in lines if " # kernel " in line]
    assert len(kernels) == 2
    assert "uv pip install --python /opt/commonage/kernels/torch/bin/python" in kernels[0]
    assert "-r /run/commonage/jax.txt ipykernel" in kernels[1]
    assert lines[-1] == "ENV PATH=/opt/commonage/kernels/torch/bin:/opt/commonage/server/bin:$PATH"


def test_another_list_is_another_layer() -> None:
    first = containerfile(Recipe("b", (TORCH, JAX)))
    second = containerfile(Recipe("b", (TORCH, Kernel("jax", "sha256:9"))))
    assert first.splitlines()[:3] == second.splitlines()[:3]
    assert first != second


def test_for_jobs_only_there_is_no_server() -> None:
    text = containerfile(Recipe("b", (TORCH,)))
    assert "/opt/commonage/server" not in text


def test_packages_of_debian_come_first_and_their_lists_go() -> None:
    text = containerfile(Recipe("b", (TORCH,), packages=("git", "python3")))
    assert text.index("install -q -y --no-install-recommends git python3") < text.index("# kernel torch")
    assert "rm -rf /var/lib/apt/lists/*" in text


def test_offline_no_index_is_asked() -> None:
    assert "--no-index" not in containerfile(Recipe("b", (TORCH,), server="sha256:3"))
    assert containerfile(Recipe("b", (TORCH,), server="sha256:3", offline=True)).count("--no-index") == 2


def test_places_of_this_node_are_mounted_where_they_are() -> None:
    text = containerfile(Recipe("b", (TORCH,), places=("/opt/wheels", "/srv/index")))
    assert "--mount=type=bind,from=place0,target=/opt/wheels" in text
    assert "--mount=type=bind,from=place1,target=/srv/index" in text


def test_a_kernel_starts_its_own_python() -> None:
    spec = json.loads(kernel_spec("torch", TORCH.prefix))
    assert spec["argv"][0] == "/opt/commonage/kernels/torch/bin/commonage-kernel"
    assert spec["display_name"] == "Python (torch)"
    assert spec["env"]["PATH"] == "/opt/commonage/kernels/torch/bin:${PATH}"
    assert kernel_title(DEFAULT_KERNEL) == "Python"


@pytest.mark.parametrize("name", ["", "Torch", "a b", "../x", "a" * 32])
def test_what_cannot_be_a_kernel_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="Invalid kernel name"):
        check_kernel(name)


def test_no_kernel_has_the_name_that_jupyter_takes_for_its_own() -> None:
    # KernelManager: a kernel named "python" becomes "python3", which, if it is no other's, is the server's Python.
    with pytest.raises(RecipeError, match="Jupyter would start its own Python instead"):
        check_kernel("python")
    assert check_kernel(DEFAULT_KERNEL) == "python3"


@pytest.mark.parametrize("name", ["", "git; rm", "-y", "A"])
def test_what_cannot_be_a_package_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="Invalid name of a Debian package"):
        check_package(name)


def test_uv_settings_survive_a_shell() -> None:
    text = uv_settings({"UV_INDEX": "https://x/simple?a='b' $(c)"})
    assert """export UV_INDEX='https://x/simple?a='"'"'b'"'"' $(c)'\n""" in text
    assert "UV_PYTHON_DOWNLOADS=never" in text


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("STEP 1/5: FROM localhost/commonage/debian:bookworm", "base commonage/debian:bookworm"),
        ("STEP 3/5: RUN --mount=type=bind x && y # kernel torch sha256:1", "kernel torch"),
        ("STEP 4/5: RUN x # server sha256:3", "server"),
        ("STEP 4/5: RUN apt-get # packages", "packages"),
        ("STEP 2/5: RUN --mount=type=secret,id=pip pip install x", "RUN pip install x"),
        ("[1/2] STEP 2/5: RUN make", "RUN make"),
        ("STEP 2/5: ENV LANG=C.UTF-8", None),
        ("Resolved 3 packages", None),
    ],
)
def test_the_steps_have_names_for_people(line: str, title: str | None) -> None:
    assert step_title(line) == title
