"""Our files (`files.injected`) that a container gets, and their paths: the entry and `exec` add them to the search
paths.

Pure except `put_in`. A mounted folder is the sign: `entry.sh` and `execs` test whether it exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.files.injected import JUPYTER, PYTHON

INSIDE = "/run/commonage"
"""The parent of these folders in the container."""
_FOLDER_MODE, _FILE_MODE = 0o755, 0o644  # the user inside may be another one outside
_FILES = {
    PYTHON: ("sitecustomize.py",),
    JUPYTER: ("labconfig/default_setting_overrides.json",),
}


def folders_of(request: StartRequest) -> tuple[Path, ...]:
    limited = any(not share.whole for share in request.allocation.shares)
    return (*([PYTHON] if limited else []), *([JUPYTER] if request.kind is Kind.SESSION else []))


def files_of(request: StartRequest) -> Iterator[tuple[str, str, str]]:
    """The same as files: name of the folder, path in the container, and text."""
    for folder in folders_of(request):
        for name in _FILES[folder]:
            yield folder.name, f"{INSIDE}/{folder.name}/{name}", (folder / name).read_text(encoding="utf-8")


def put_in(place: Path) -> None:
    """Put all of them in `place`, for a daemon that does not see where this program is installed. Raises OSError."""
    for folder, names in _FILES.items():
        for name in names:
            target = place / folder.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            for above in (place / folder.name, target.parent):
                above.chmod(_FOLDER_MODE)
            fresh = target.with_name(f".{target.name}.new")
            fresh.unlink(missing_ok=True)
            fresh.write_bytes((folder / name).read_bytes())
            fresh.chmod(_FILE_MODE)
            fresh.replace(target)  # running containers have the folder mounted, and see the new file
