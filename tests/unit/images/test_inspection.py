"""What an image has, out of what the script in it says."""

import json

from commonage.domain.images import Kernel
from commonage.images.inspection import parse


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
    kernels, server = parse(text)
    assert kernels == (Kernel("torch", "T", "/opt/k/torch"), Kernel("ir", "ir"), Kernel("python3", "Python 3"))
    assert server == "/opt/commonage/server"


def test_a_server_on_the_usual_path_needs_no_folder() -> None:
    assert parse(said(server="/usr/local/bin/jupyterhub-singleuser")) == ((), "")


def test_without_a_server_no_session() -> None:
    assert parse(said()) == ((), None)


def test_the_first_of_a_name_counts_and_what_is_torn_does_not() -> None:
    text = said(
        ("/usr/local/share/jupyter/kernels/a/kernel.json", {"argv": ["/x/bin/python"]}),
        ("/usr/share/jupyter/kernels/a/kernel.json", {"argv": ["/y/bin/python"]}),
        ("/usr/share/jupyter/kernels/b/kernel.json", ["no", "object"]),
        ("/usr/share/jupyter/kernels/c d/kernel.json", {"argv": ["x"]}),
        ("/usr/share/jupyter/kernels/e/kernel.json", {"argv": []}),
    )
    assert parse(text)[0] == (Kernel("a", "a", "/x"),)
