"""The archive of the agent: it needs Python alone."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from commonage.link.bundle import make_bundle

IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def test_every_module_imports_with_the_standard_library_alone(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(make_bundle()), mode="r:gz") as archive:
        archive.extractall(tmp_path, filter="data")
    modules = sorted(
        ".".join(path.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__")
        for path in tmp_path.rglob("*.py")
        if path.name != "__main__.py"
    )
    code = (
        f"import importlib, sys; sys.path.insert(0, {str(tmp_path)!r}); [importlib.import_module(m) for m in {modules}]"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
