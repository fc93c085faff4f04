"""The table of problems."""

from commonage.api.failures import answer
from commonage.api.problems import PROBLEMS, problem


def test_no_problem_has_a_status_that_the_proxy_replaces_by_its_own_page() -> None:
    assert not [one.code for one in PROBLEMS.values() if one.status in (502, 504)]


def test_who_may_try_again_is_told_when_and_nobody_else() -> None:
    kind = PROBLEMS["engine-failure"]
    assert answer(problem(kind, "the daemon is away", retryable=True)).headers["Retry-After"]
    assert "Retry-After" not in answer(problem(kind, "no such image")).headers
