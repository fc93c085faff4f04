"""An image with a shell, this machine's Python and the notebook environment, for container engines.

Made of this machine's own files, so that no registry is needed. The environment is kept between runs.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from tests.contract.harness.dockerd import libraries_of, minimal_image

# The same path on this machine and in the image: virtual environments cannot be moved.
PLACE = Path("/var/tmp/commonage-bench-notebook")
REQUIREMENTS = Path(__file__).parents[2] / "src/commonage/catalogue/notebook.txt"
PATH = f"{PLACE}/bin:/usr/local/bin:/usr/bin:/bin"


def notebook_environment() -> Path:
    """The folder of the notebook environment; rebuilt if its requirements have changed."""
    stamp = PLACE / ".requirements"
    wanted = REQUIREMENTS.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        uv = str(Path(sys.executable).parent / "uv")
        python = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", python, str(PLACE)], check=True)
        words = ["pip", "sync", "--quiet", "--system-certs", "--python", f"{PLACE}/bin/python", str(REQUIREMENTS)]
        subprocess.run([uv, *words], check=True)
        subprocess.run([f"{PLACE}/bin/python", "-m", "compileall", "-q", str(PLACE / "lib")], check=False)
        stamp.write_text(wanted)
    return PLACE


def notebook_image() -> bytes:
    """A tar of the root file system, for `docker import`."""
    place = notebook_environment()
    buffer = BytesIO(minimal_image())
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        archive.add(place, str(place))
        there = set(archive.getnames())
        for module in place.rglob("*.so*"):
            for path in libraries_of(str(module)):
                name = path.lstrip("/")
                if name not in there and not path.startswith(str(place)):
                    there.add(name)
                    archive.add(Path(path).resolve(), name)
    return buffer.getvalue()
