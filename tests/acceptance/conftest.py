"""A git server."""

from tests.integration.git_fixtures import course, git

__all__ = ["course", "git"]
