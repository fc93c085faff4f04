#!/usr/bin/env python
"""Generates the blocking client, commonage/sdk/synchronous.py, from asynchronous.py.

With --check it writes nothing and ends with status 1 if the file is out of date; that is how tests/shape calls it.
"""

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).parents[1]
SDK = ROOT / "src" / "commonage" / "sdk"
SOURCE, TARGET = SDK / "asynchronous.py", SDK / "synchronous.py"
DOCSTRING = '"""The client for scripts and the command line. Generated from `asynchronous.py` by `scripts/sdk.py`."""'
# An interactive command reads and writes at the same time, which needs asyncio.
ASYNC_ONLY = {"exec"}
REPLACEMENTS = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncGenerator": "Generator",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "async_content": "content",
    "async_execute": "execute",
    "async_wait": "wait",
    "asyncio": "time",
}


def generate() -> str:
    """The text of the blocking client."""
    text = _without(SOURCE.read_text(), ASYNC_ONLY)
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "async", SOURCE.name), Path(folder, "sync", SOURCE.name)
        given.parent.mkdir()
        given.write_text(text)
        rule = unasync.Rule(f"{given.parent}/", f"{made.parent}/", additional_replacements=REPLACEMENTS)
        unasync.unasync_files([str(given)], [rule])
        text = made.read_text()
    text = re.sub(r'\A""".*?"""', DOCSTRING, text, flags=re.DOTALL)
    text = re.sub(r"\((self\._\w+\(.*\))\)\.", r"\1.", text)  # parentheses around a former `await`
    name = f"--stdin-filename={TARGET}"
    text = _ruff(["check", "--quiet", "--fix", "--unsafe-fixes", "--exit-zero", name, "-"], text)
    return _ruff(["format", "--quiet", name, "-"], text)


def _without(text: str, methods: set[str]) -> str:
    """The module without these methods of its class, and without the imports for their annotations."""
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    [client] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    unwanted: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.If)]
    unwanted += [node for node in client.body if isinstance(node, ast.FunctionDef) and node.name in methods]
    for node in reversed(unwanted):
        del lines[node.lineno - 1 : (node.end_lineno or node.lineno) + 1]
    return "".join(lines)


def _ruff(arguments: list[str], text: str) -> str:
    ruff = [sys.executable, "-m", "ruff", *arguments]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main(arguments: list[str]) -> int:
    """Write the file, or with --check compare it."""
    text = generate()
    if text == TARGET.read_text():
        return 0
    if "--check" in arguments:
        print(f"{TARGET.relative_to(ROOT)}: out of date, run: .venv/bin/python scripts/sdk.py")
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
