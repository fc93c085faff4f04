"""A newer Docker than this Debian's: the next Debian's own packages, unpacked into a folder, and run from there.

They are fetched once, from where this machine's own packages come from, and kept in /tmp under a name that says what is
in the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import IO

from tests.contract.harness.made_once import made_once

SUITE = "trixie"
PACKAGES = ("docker.io", "containerd")
"""The others that they need, runc and the small init, are this machine's own."""


def newer_docker() -> tuple[str, ...]:
    """The words before `dockerd` that have it be the newer one. Some twenty seconds when it is not there yet."""
    place = made_once(f"newer-docker-{SUITE}-{'-'.join(PACKAGES)}", _fetch)
    return ("env", f"PATH={place}/usr/sbin:{place}/usr/bin:{os.environ['PATH']}")


def _fetch(folder: Path, log: IO[bytes]) -> None:
    for place in ("lists/partial", "cache/archives/partial"):
        (folder / place).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb {_mirror()} {SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    for what in (["update"], ["download", *PACKAGES]):
        subprocess.run(["apt-get", "-qq", *words, *what], cwd=folder, stdout=log, stderr=log, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        package.unlink()
    for place in ("lists", "cache"):
        shutil.rmtree(folder / place)


def _mirror() -> str:
    """Where this machine's Debian comes from."""
    look = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages", "Component: main"]
    listed = subprocess.run(look, capture_output=True, text=True, check=True).stdout.splitlines()
    release = next(
        line for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("VERSION_CODENAME=")
    )
    own = release.partition("=")[2]
    return next(uri for uri, _, name in (line.partition(" ") for line in listed) if name == own)
