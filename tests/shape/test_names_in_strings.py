"""Names of modules, attributes and files inside strings: no type check sees them, so each is resolved here."""

import ast
import configparser
import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
# Files, labels and keys that begin like a module of this repository, but are not one.
NO_MODULES = {
    "commonage.attempt",
    "commonage.child.hub",
    "commonage.css",
    "commonage.db",
    "commonage.dev",
    "commonage.example",
    "commonage.installation",
    "commonage.lock",
    "commonage.tenant",
    "commonage.toml",
    "commonage.volume",
    "commonage.x",
    "commonage.yml",
}
# What a guide tells its reader to make.
EXAMPLES = {"NAME.py", "quiet.py"}
# This test, and the tests of the renaming script: they use names that never existed.
NOT_READ = ("tests/shape/test_names_in_strings.py", "tests/unit/scripts/*", "scripts/rename*")
DOTTED = re.compile(r"(commonage(?:\.[A-Za-z_]\w*)+)(?::(\w+))?")
RUN_AS_MODULE = re.compile(r"-m (commonage(?:\.\w+)*)")
BESIDE = re.compile(
    r"Path\(__file__\)(?:\.resolve\(\))?((?:\.parents?(?:\[\d\])?|\.with_name\(\"[^\"]+\"\)| / \"[^\"]+\")+)"
)


def python_files() -> list[str]:
    return [path for path in TRACKED if path.endswith(".py") and not any(fnmatch(path, glob) for glob in NOT_READ)]


def strings(path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_module(name: str) -> bool:
    path = SOURCES / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def resolve(name: str, attribute: str | None = None) -> str:
    """The fault of a dotted name, of a module or of attributes of one; empty if it is right."""
    parts = name.split(".")
    count = next((count for count in range(len(parts), 0, -1) if is_module(".".join(parts[:count]))), 0)
    wanted = [*parts[count:], *([attribute] if attribute else [])]
    if count == len(parts) and not wanted:
        return ""
    if count < 2:
        return f"there is no module {name}"
    thing: object = importlib.import_module(".".join(parts[:count]))
    for part in wanted:
        # A dataclass field without a default is no attribute of its class.
        if not hasattr(thing, part) and part not in getattr(thing, "__annotations__", {}):
            return f"{name}: {thing!r} has no {part}"
        thing = getattr(thing, part, None)
    return ""


def test_dotted_names_in_strings_exist() -> None:
    wrong = []
    for path in python_files():
        for text in strings(path):
            match = DOTTED.fullmatch(text)
            if match and match[1] not in NO_MODULES and (why := resolve(match[1], match[2])):
                wrong.append(f"{path}: {why}")
    assert not wrong, "\n".join(wrong)


def test_modules_that_are_run_exist() -> None:
    wrong = []
    for path in TRACKED:
        file = ROOT / path
        if (
            any(fnmatch(path, glob) for glob in NOT_READ)
            or file.suffix in {".png", ".json", ".svg"}
            or file.is_symlink()
        ):
            continue
        for name in RUN_AS_MODULE.findall(file.read_text(encoding="utf-8", errors="replace")):
            if not is_module(name) and not is_module(f"{name}.__main__"):
                wrong.append(f"{path}: python -m {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", [path for path in python_files() if "__file__" in (ROOT / path).read_text()])
def test_files_beside_a_module_exist(path: str) -> None:
    for found in BESIDE.finditer((ROOT / path).read_text()):
        place = ROOT / path
        for step, index, name, below in re.findall(
            r"\.(parents?)(?:\[(\d)\])?|with_name\(\"([^\"]+)\"\)|/ \"([^\"]+)\"", found[1]
        ):
            if step:
                place = place.parents[int(index)] if index else place.parent
            else:
                place = place.with_name(name) if name else place / below
        assert place.exists() or place.name in {"vendor", "node_modules"}, f"{found[0]} is {place}, which is not there"


# `layers` are left out: those may name a package that is still to come, and `exhaustive` finds one that is not named.
def test_import_rules_name_modules_that_exist() -> None:
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    wrong = []
    for section in rules.sections():
        for key in ("source_modules", "forbidden_modules", "ignore_imports"):
            for name in re.findall(r"commonage(?:\.\w+)*", rules.get(section, key, fallback="")):
                if not is_module(name):
                    wrong.append(f"{section}: {name}")
    assert not wrong, "\n".join(wrong)


def test_the_project_file_names_what_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    entries = [*project["project"]["scripts"].values()]
    for group in project["project"].get("entry-points", {}).values():
        entries += group.values()
    entries += [
        name
        for override in project["tool"]["mypy"]["overrides"]
        for name in override["module"]
        if name.startswith("commonage")
    ]
    wrong = [why for entry in entries if (why := resolve(*entry.removesuffix(".*").split(":")))]
    for glob in project["tool"]["ruff"]["lint"]["per-file-ignores"]:
        if not any(fnmatch(path, glob) for path in TRACKED):
            wrong.append(f"pyproject.toml: no file is meant by {glob}")
    assert not wrong, "\n".join(wrong)


def test_the_bundle_of_agents_names_packages_that_exist() -> None:
    bundle = importlib.import_module("commonage.link.bundle")
    assert all(is_module(f"commonage.{package}") for package in bundle._WHOLE)


def test_paths_of_our_files_in_texts_exist() -> None:
    files = set(TRACKED)
    folders = {parent.as_posix() for path in TRACKED for parent in Path(path).parents}
    wrong = []
    for path in TRACKED:
        if any(fnmatch(path, glob) for glob in (*NOT_READ, "*.png", "*.svg", "*.json", "CHANGELOG.md", "docs/adr/*")):
            continue
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        for found in set(
            re.findall(r"(?<![\w/.-])(src/commonage(?:/[\w-]+)*(?:/[\w-]+\.\w+)?)(?![\w/*<{]|\.\w)", text)
        ):
            is_example = found.rpartition("/")[2] in EXAMPLES
            if found not in files | folders and not is_example and not (ROOT / found).exists():
                wrong.append(f"{path}: {found}")
    assert not wrong, "\n".join(wrong)
