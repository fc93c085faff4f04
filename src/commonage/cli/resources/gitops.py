"""`commonage gitops`: keeps the server's resources as a git branch declares them.

A commit that is invalid changes nothing; its reason is on the commit status and in the portal. Reverting a commit rolls
back, because the tree of the newest commit counts, not its history.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli.connection import Server, calls_server, connect
from commonage.cli.errors import FAILED, MISUSED, Failure
from commonage.cli.resources.apply import plan_lines
from commonage.cli.resources.commit_status import SERVERS, TOKENS, CommitStatus, StatusNotSet
from commonage.cli.resources.documents import SUFFIX, InvalidFile, Located, read_text, with_place
from commonage.files.git import Branch, GitFailed
from commonage.sdk.errors import ApiError, Unreachable

if TYPE_CHECKING:
    from commonage.sdk import Client

APPLIED, REFUSED, UNREACHABLE = "applied", "refused", "unreachable"
_TRIES = 3
_MAX_MESSAGE = 4000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a round. `commit` is empty if the repository cannot be read."""

    state: str
    commit: str
    message: str


class Refused(Exception):
    """The commit is invalid."""


@dataclass(slots=True)
class Reconciler:
    """Applies the newest commit of a branch. `status`: where the result is shown, or None."""

    client: Client
    branch: Branch
    path: str
    status: CommitStatus | None = None
    _shown: Outcome | None = None

    def round(self) -> Outcome:
        """Fetch, check and apply, then report. Raises ApiError if the server does not answer."""
        outcome = self._reconcile()
        self._report(outcome)
        return outcome

    def _reconcile(self) -> Outcome:
        commit = ""
        try:
            commit = self.branch.fetch()
            documents = self._documents(commit)
        except GitFailed as error:
            return Outcome(UNREACHABLE, commit, str(error))
        except Refused as error:
            return Outcome(REFUSED, commit, str(error))
        try:
            return Outcome(APPLIED, commit, self._apply(documents))
        except ApiError as error:
            if isinstance(error, Unreachable) or error.status not in (409, 422):
                raise
            return Outcome(REFUSED, commit, with_place(error, documents))

    def _documents(self, commit: str) -> list[Located]:
        files = self.branch.files(commit, self.path, SUFFIX)
        if not files:  # a mistyped path must not delete everything
            raise Refused(f"no file below {self.path} has a name that ends in {SUFFIX}")
        return [document for name, data in sorted(files.items()) for document in _read(name, data)]

    def _apply(self, documents: list[Located]) -> str:
        """Apply, and again if other resources changed between plan and apply. Returns the changes."""
        from commonage.wire.resources import ApplyIn, PlanIn

        plain = [one.document for one in documents]
        ask = PlanIn(documents=plain, managed_by=self.branch.source, prune=True)
        for left in reversed(range(_TRIES)):
            planned = self.client.plan(ask)
            lines = plan_lines(planned)
            if all(one.action == "unchanged" for one in planned.changes):
                return lines[-1]
            try:
                self.client.apply(ApplyIn(**ask.model_dump(), revision=planned.revision))
            except ApiError as error:
                if error.code != "version-mismatch" or not left:
                    raise
                continue
            click.echo("\n".join(lines))
            return lines[-1]
        raise AssertionError("the last try returns or raises")

    def _report(self, outcome: Outcome) -> None:
        from commonage.wire.resources import GitSourceIn

        body = GitSourceIn.model_validate(
            {"state": outcome.state, "commit": outcome.commit, "message": outcome.message[:_MAX_MESSAGE]}
        )
        self.client.report_git_source(self.branch.source, body)
        shown = self._shown
        is_new = shown is None or (shown.state, shown.commit) != (outcome.state, outcome.commit)
        if is_new or (outcome.state != APPLIED and shown != outcome):
            click.echo(f"{outcome.state} {outcome.commit[:12]}: {outcome.message}", err=outcome.state != APPLIED)
            if self.status is not None and outcome.commit:
                try:
                    self.status.set(outcome.commit, good=outcome.state == APPLIED, message=outcome.message)
                except StatusNotSet as error:
                    click.echo(f"the commit status was not set: {error}", err=True)
                    return  # the next round tries again
        self._shown = outcome


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command. `interval` in seconds."""

    repo: str
    branch: str
    path: str
    interval: int
    once: bool
    status: str | None
    status_url: str


def _read(name: str, data: bytes) -> list[Located]:
    try:
        return read_text(data.decode(), name)
    except UnicodeDecodeError as error:
        raise Refused(f"{name} is not UTF-8 text (byte {error.start})") from None
    except InvalidFile as error:
        raise Refused(str(error)) from None


@click.command
@click.option("--repo", required=True, metavar="URL", help="Address of the repository, as for `git clone`.")
@click.option("--branch", default="main", show_default=True, help="Branch to apply.")
@click.option("--path", default=".", show_default=True, help="Folder in the repository.")
@click.option(
    "--interval",
    type=click.IntRange(5, 86_400),
    default=60,
    show_default=True,
    help="Seconds between two looks at the branch.",
)
@click.option("--once", is_flag=True, help="Apply once and end; exit code 1 if the commit is refused.")
@click.option(
    "--status",
    metavar="KIND:PROJECT",
    help="Set commit statuses at github:OWNER/NAME or gitlab:GROUP/PROJECT, with GITHUB_TOKEN or GITLAB_TOKEN.",
)
@click.option("--status-url", metavar="URL", default="", help="Address of your own GitHub API or GitLab.")
@calls_server
def gitops(server: Server, **given: Any) -> None:
    """Apply the resources of a branch of a git repository, and each new commit. For admins.

    \b
    Example:
      commonage gitops --repo https://github.com/lab/platform --branch production --status github:lab/platform
    """
    options = Options(**given)
    where = None if options.status is None else _status(options.status, options.status_url, os.environ)
    with tempfile.TemporaryDirectory(prefix="commonage-gitops-") as folder, connect(server, 30.0) as client:
        try:
            reconciler = Reconciler(client, Branch(options.repo, options.branch, Path(folder)), options.path, where)
        except GitFailed as error:
            raise Failure(str(error), MISUSED) from None
        while True:
            try:
                outcome = reconciler.round()
            except ApiError as error:
                if options.once or error.status in (401, 403):
                    raise
                click.echo(f"the server does not answer: {error.detail}", err=True)
            else:
                if options.once:
                    if outcome.state != APPLIED:
                        raise click.exceptions.Exit(FAILED)
                    return
            time.sleep(options.interval)


def _status(text: str, url: str, environ: Mapping[str, str]) -> CommitStatus:
    kind, _, project = text.partition(":")
    if kind not in SERVERS or "/" not in project:
        raise Failure(f"--status is {text!r}. Write github:OWNER/NAME or gitlab:GROUP/PROJECT.", MISUSED)
    token = environ.get(TOKENS[kind], "")
    if not token:
        raise Failure(f"set {TOKENS[kind]} to a token that may write commit statuses of {project}", MISUSED)
    return CommitStatus(kind, project, token, url)
