"""The environments that come with Commonage: their descriptions here, their pinned requirements in files next to it.

Read by bootstrap, which adds those of the settings. The engines make an environment on a node.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from commonage.domain.builds import BUILDER
from commonage.domain.images import Environment
from commonage.domain.workloads import Kind

_HERE = Path(__file__).parent


@cache
def builtin_environments() -> tuple[Environment, ...]:
    """`base`, which is ready in a moment on any node, and `notebook`, which needs a package index and minutes once."""
    return (
        Environment(
            "base",
            "Python",
            "Plain Python, nothing else: for scripts that bring their own, and for programs that are not Python.",
            kinds=(Kind.JOB, Kind.SERVICE),
        ),
        Environment(
            "notebook",
            "JupyterLab with scientific Python",
            "JupyterLab 4 with NumPy, scikit-learn and Matplotlib. Made on first use, which takes a minute or two.",
            requirements=read_requirements((_HERE / "notebook.txt").read_text(encoding="utf-8")),
            kinds=(Kind.SESSION, Kind.JOB, Kind.SERVICE),
        ),
    )


def builder_environment(python: str) -> Environment:
    """The environment of builds, which has this server's own Python. It is offered for no other work."""
    return Environment(BUILDER, "Builds environments", python=python, kinds=())


def read_requirements(text: str) -> tuple[str, ...]:
    """The requirements of a pip file, one each, with their hashes; comments and line continuations resolved."""
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return tuple(" ".join(line.split()) for line in lines if line and not line.startswith("#"))
