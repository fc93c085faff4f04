"""Sets the status of a commit at GitHub or GitLab, so that a broken commit shows why it was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import httpx2

CONTEXT = "commonage"
SERVERS = {"github": "https://api.github.com", "gitlab": "https://gitlab.com"}
TOKENS = {"github": "GITHUB_TOKEN", "gitlab": "GITLAB_TOKEN"}
_LONGEST = {"github": 140, "gitlab": 255}


class StatusNotSet(Exception):
    """GitHub or GitLab refused the status, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """`project` is OWNER/NAME or GROUP/PROJECT; `server` the address of the API, for installations of one's own."""

    kind: str
    project: str
    token: str
    server: str = ""
    context: str = CONTEXT
    http: httpx2.BaseTransport | None = None

    def set(self, commit: str, *, good: bool, message: str) -> None:
        """Raises StatusNotSet."""
        import httpx2

        url, body, headers = self._request(commit, good=good, message=message)
        try:
            with httpx2.Client(transport=self.http, timeout=30.0) as client:
                answer = client.post(url, json=body, headers=headers)
        except httpx2.HTTPError as error:
            raise StatusNotSet(f"{self.kind} cannot be reached: {error}") from error
        if not answer.is_success:
            raise StatusNotSet(f"{self.kind} answered HTTP {answer.status_code} for the status of {commit[:12]}")

    def _request(self, commit: str, *, good: bool, message: str) -> tuple[str, dict[str, Any], dict[str, str]]:
        server = (self.server or SERVERS[self.kind]).rstrip("/")
        text = shortened(message, _LONGEST[self.kind])
        if self.kind == "github":
            state = "success" if good else "failure"
            body = {"state": state, "description": text, "context": self.context}
            headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"}
            return f"{server}/repos/{quote(self.project)}/statuses/{commit}", body, headers
        state = "success" if good else "failed"
        body = {"state": state, "description": text, "name": self.context}
        place = f"{server}/api/v4/projects/{quote(self.project, safe='')}/statuses/{commit}"
        return place, body, {"PRIVATE-TOKEN": self.token}


def shortened(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
