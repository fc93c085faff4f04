"""Fixtures for tests of materials: a git server, and the repository of a course on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.git_server import GitServer, PushedRepository, git_server


@pytest.fixture
def git(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "git") as server:
        yield server


@pytest.fixture
def course(git: GitServer) -> PushedRepository:
    return git.repository("course")
