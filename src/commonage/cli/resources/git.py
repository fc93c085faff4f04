"""Reads one branch of a git repository with the git program. Nothing is checked out and no hook of it runs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

_TIMEOUT_S = 120.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,200}")
_MAX_FILES = 500
_SETTINGS = {
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",  # others can run any program
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}


class GitFailed(Exception):
    """The repository cannot be read; the message is git's."""


class Branch:
    """A branch of the repository at `url`, kept without a work tree in `folder`."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        if not _BRANCH.fullmatch(name) or ".." in name:
            raise GitFailed(f"{name[:60]!r} is not the name of a branch")
        if url.startswith("-"):
            raise GitFailed(f"{url[:60]!r} is not the address of a repository")
        self.url, self.name, self._folder = url, name, folder

    @property
    def source(self) -> str:
        """`git:REPO@BRANCH`, without credentials."""
        return f"git:{without_credentials(self.url)}@{self.name}"

    def fetch(self) -> str:
        """The newest commit of the branch. Raises GitFailed."""
        if not (self._folder / "HEAD").exists():
            self._git("init", "--quiet", "--bare", str(self._folder))
        reference = f"refs/heads/{self.name}"
        self._git("fetch", "--quiet", "--depth=1", "--no-tags", "--", self.url, f"+{reference}:{reference}")
        commit = self._git("rev-parse", "--verify", f"{reference}^{{commit}}").decode().strip()
        if not _COMMIT.fullmatch(commit):
            raise GitFailed(f"git gave no commit of {self.name}: {commit[:60]!r}")
        return commit

    def files(self, commit: str, path: str, suffix: str) -> dict[str, bytes]:
        """The files of a commit below `path` whose names end in `suffix`, by path. Links are not followed."""
        place = path.strip("/")
        below = ["--", place] if place not in ("", ".") else []
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit, *below)
        found: dict[str, bytes] = {}
        for entry in listed.decode(errors="surrogateescape").split("\0"):
            about, _, name = entry.partition("\t")
            if about.startswith("100") and name.endswith(suffix):
                if len(found) == _MAX_FILES:
                    raise GitFailed(f"more than {_MAX_FILES} files below {path}")
                found[name] = self._git("cat-file", "blob", about.split()[2])
        return found

    def _git(self, *arguments: str) -> bytes:
        where = ["--git-dir", str(self._folder)] if arguments[0] != "init" else []
        try:
            done = subprocess.run(
                ["git", *where, *arguments],
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
                env={**os.environ, **_SETTINGS},
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise GitFailed("the program git is not installed") from None
        except subprocess.TimeoutExpired:
            raise GitFailed(f"git {arguments[0]} took longer than {_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().replace(self.url, without_credentials(self.url))
            raise GitFailed(said[-1000:] or f"git {arguments[0]} failed")
        return done.stdout


def without_credentials(url: str) -> str:
    """The address as it may be shown."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
