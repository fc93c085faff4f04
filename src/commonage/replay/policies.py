"""Loads the placement policies that a replay compares: by name, or as `module:name` from the user's own code.

Called by `commonage replay` and by the placement benchmark.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from commonage.domain.errors import InvalidInput
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import Maker

_METHODS = ("arrived", "costs", "devices")


def maker_of(name: str, known: Mapping[str, Maker]) -> Maker:
    """The policy of this name among `known`, or the one at `module:name`.

    Searches Python's module path, then the current folder. Raises InvalidInput, which names the module, the failure and
    the next step.
    """
    if name in known:
        return known[name]
    module_name, colon, attribute = name.partition(":")
    if not (colon and attribute and all(part.isidentifier() for part in module_name.split("."))):
        raise InvalidInput(
            f"unknown policy {name!r}; known policies: {', '.join(known)}. Write module:name for your own policy, "
            "like quiet:Quiet",
            field="policy",
        )
    module = _module(name, module_name)
    if not hasattr(module, attribute):
        raise _unusable(name, f"module {module_name} has no {attribute!r}. {_choices(module)}")
    maker: Maker = getattr(module, attribute)
    _try(name, maker)
    return maker


def _module(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            advice = "Run the command in the folder that holds it, or install it into this environment"
            raise _unusable(name, f"there is no module {error.name!r}. {advice}") from error
        raise _not_imported(name, module_name, error) from error
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise _not_imported(name, module_name, error) from error


def _try(name: str, maker: Any) -> None:
    """Make the policy once without nodes, as the server does at start."""
    try:
        policy = maker(Grid(()), WorkloadMix(), 0)
    except Exception as error:  # the user's own code may raise anything
        reason = f"calling it with a grid, a mix and a seed failed: {_describe(error)}"
        raise _unusable(name, f"{reason}. Correct it and run the command again") from error
    missing = [method for method in _METHODS if not callable(getattr(policy, method, None))]
    if missing:
        raise _unusable(name, f"the object it returns has no {', '.join(missing)}. A policy has {', '.join(_METHODS)}")


def _not_imported(name: str, module_name: str, error: BaseException) -> InvalidInput:
    return _unusable(
        name, f"importing the module {module_name} failed: {_describe(error)}. Correct it and run the command again"
    )


def _describe(error: BaseException) -> str:
    """The error with its file and line. A SyntaxError already contains both."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        return text
    last = extract_tb(error.__traceback__)[-1]
    return text if last.filename == __file__ else f"{text} ({Path(last.filename).name}, line {last.lineno})"


def _choices(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return f"It has {', '.join(own)}" if own else "It defines no class or function"


def _unusable(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"policy {name!r} cannot be used: {why}", field="policy")
