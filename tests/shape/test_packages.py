"""Modules and packages: docstrings, and folders of source code that are packages and not empty."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "commonage").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_module_says_what_lives_in_it(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the first lines say what lives here, who calls it, what is not its job"


def test_no_package_is_empty() -> None:
    packages = [path.parent for path in SOURCES if path.name == "__init__.py"]
    empty = [
        package.relative_to(ROOT).as_posix()
        for package in packages
        if not any(other.is_relative_to(package) and other.name != "__init__.py" for other in SOURCES)
        and len(ast.parse((package / "__init__.py").read_text()).body) <= 1
    ]
    assert not empty, "a room is born when its first real file is"


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in SOURCES}
    without = sorted(folder.relative_to(ROOT).as_posix() for folder in folders if not (folder / "__init__.py").exists())
    assert not without, "without __init__.py the import rules do not see the folder"


def test_docstrings_begin_with_their_subject() -> None:
    bare = re.compile(r'^ *"""(What|Who|Whom|Whose|Which|That which) ', re.MULTILINE)
    paths = [path for folder in ("src", "tests", "scripts", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    found = [path.relative_to(ROOT).as_posix() for path in paths if bare.search(path.read_text(encoding="utf-8"))]
    assert found == [], "name the thing: not 'What is left of a request', but 'The rest of a request'"
