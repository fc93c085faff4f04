"""The table of problems."""

import pytest

from commonage.api.failures import answer
from commonage.api.problems import PROBLEMS, problem, problem_of
from commonage.domain.errors import EngineFailure


def test_no_problem_has_a_status_that_the_proxy_replaces_by_its_own_page() -> None:
    assert not [one.code for one in PROBLEMS.values() if one.status in (502, 504)]


def test_only_retryable_problems_have_retry_after() -> None:
    kind = PROBLEMS["engine-failure"]
    assert answer(problem(kind, "the daemon is away", retryable=True)).headers["Retry-After"]
    assert "Retry-After" not in answer(problem(kind, "no such image")).headers


def test_engine_message_goes_only_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    document = problem_of(EngineFailure("the Docker daemon refuses the command", native="Docker: OCI runtime failed"))
    assert document.detail == "the Docker daemon refuses the command"
    assert "Docker: OCI runtime failed" in caplog.text
