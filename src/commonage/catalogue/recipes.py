"""The environments that come as recipes, in `recipes/`: an admin builds one by `commonage environment build`.

Each has a CPU and a CUDA variant, which differ by one line of each kernel that uses a GPU.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "recipes"
VARIANTS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class ShippedRecipe:
    """`kernels` are requirements by kernel, `server` those that its server of sessions needs besides its own.

    `debian` are packages of Debian, `files` texts by path: both only in images. `uses_cuda`: it needs a GPU.
    """

    name: str
    title: str
    description: str
    kernels: Mapping[str, tuple[str, ...]]
    server: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    uses_cuda: bool = False


def recipe_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def shipped_recipe(name: str, variant: str) -> ShippedRecipe:
    """A recipe by its name, one of `recipe_names`, in one of VARIANTS. A recipe without GPU packages is the same in
    both.
    """
    declared = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    kernels: dict[str, Any] = declared.pop("kernels")
    own = {kernel: [lists[variant]] if variant in lists else [] for kernel, lists in kernels.items()}
    lists = {kernel: (*own[kernel], *lists["requirements"]) for kernel, lists in kernels.items()}
    return ShippedRecipe(
        name=name,
        title=declared["title"],
        description=declared["description"],
        kernels=lists,
        server=tuple(declared.get("server", ())),
        debian=tuple(declared.get("debian", ())),
        files={path: text.lstrip("\n") for path, text in declared.get("files", {}).items()},
        uses_cuda=variant == "cuda" and any(own.values()),
    )
