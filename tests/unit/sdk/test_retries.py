"""Retries of calls, and resumed streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx2
import pytest

from commonage.sdk import ApiError, AsyncClient, Client, SubmitIn, Unreachable
from commonage.sdk.calls import Backoff, may_repeat

INFO = {
    "name": "Commonage", "version": "1", "user": "ann", "admin": False, "scopes": [], "simulated_gpus": False,
    "engines": [], "counts": {}, "queue_length": 0, "notes": [],
}  # fmt: skip
Answer = Callable[[httpx2.Request], httpx2.Response]


def refused(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("refused")


def broken(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadError("reset")


def gateway(_: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(502, text="<html>bad gateway</html>")


def busy(_: httpx2.Request) -> httpx2.Response:
    problem = {"code": "unavailable", "detail": "the hub does not answer", "status": 503, "retryable": True}
    return httpx2.Response(503, json=problem)


def info(_: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, json=INFO)


class Script:
    """Gives one answer after the other, and keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers: Iterator[Answer] = iter(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return next(self.answers)(request)


def client(script: Script, reconnect_timeout_s: float = 1.0) -> Client:
    return Client("http://c", "t", http=httpx2.MockTransport(script), reconnect_timeout_s=reconnect_timeout_s)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, in seconds, that were not waited for."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    return pauses


def test_retries_reads_until_answered(quick: list[float]) -> None:
    script = Script(refused, gateway, busy, broken, info)
    assert client(script, reconnect_timeout_s=10).info().user == "ann"
    assert len(script.requests) == 5
    assert quick == [0.1, 0.2, 0.4, 0.8]


def failed(*answers: Answer) -> ApiError:
    """The error of a read that gets these answers."""
    with pytest.raises(ApiError) as caught:
        client(Script(*answers)).info()
    return caught.value


def test_raises_last_error_after_retries() -> None:
    unreachable = failed(*[refused] * 100)
    assert (type(unreachable), unreachable.code) == (Unreachable, "unreachable")
    assert "http://c cannot be reached" in unreachable.detail
    unavailable = failed(*[busy] * 100)
    assert (unavailable.code, unavailable.status) == ("unavailable", 503)


@pytest.mark.parametrize("answer", [broken, gateway, busy])
def test_submit_without_key_is_not_retried(answer: Answer) -> None:
    script = Script(answer)
    with pytest.raises(ApiError):
        client(script).submit(SubmitIn(command=["x"]))
    assert len(script.requests) == 1


def test_retries_submit_that_cannot_have_arrived() -> None:
    script = Script(refused, busy)
    with pytest.raises(ApiError) as caught:
        client(script).submit(SubmitIn(command=["x"]))
    assert caught.value.code == "unavailable"
    assert len(script.requests) == 2


def test_retries_submit_with_key() -> None:
    script = Script(broken, gateway, lambda _: httpx2.Response(422, json={"code": "unschedulable", "detail": "no"}))
    with pytest.raises(ApiError) as caught:
        client(script).submit(SubmitIn(command=["x"], key="k"))
    assert caught.value.code == "unschedulable"
    assert json.loads(script.requests[0].content) == {"command": ["x"], "key": "k"}
    assert script.requests[0].content == script.requests[2].content


def test_refusal_is_not_retried() -> None:
    script = Script(lambda _: httpx2.Response(403, json={"code": "scope-missing", "detail": "no"}))
    with pytest.raises(ApiError):
        client(script).info()
    assert len(script.requests) == 1


@pytest.mark.parametrize(("status", "code"), [(200, "not-commonage"), (404, "http-404")])
def test_response_of_another_server_is_refused(status: int, code: str) -> None:
    error = failed(lambda _: httpx2.Response(status, text="<html>"))
    assert error.code == code
    assert "is the address right" in error.detail


def stream(*chunks: str) -> Answer:
    """A stream that breaks off after these chunks."""
    body = "".join(chunks).encode()
    return lambda _: httpx2.Response(200, content=body, headers={"Content-Type": "text/event-stream"})


def line(text: str, offset: int) -> str:
    return f"id: {offset}\nevent: line\ndata: {json.dumps({'text': text, 'offset': offset})}\n\n"


COMPLETED = {"code": "Completed", "params": {}, "message": "Exit code 0."}
END = f"event: end\ndata: {json.dumps({'state': 'succeeded', 'exit_code': 0, 'reason': COMPLETED})}\n\n"


def test_log_resumes_after_last_whole_line() -> None:
    half = line("two", 8)[:-5]
    script = Script(stream(line("one", 4), ": still here\n\n", half), refused, stream(line("two", 8), END))
    assert [each.text for each in client(script).logs("w", follow=True)] == ["one", "two"]
    assert [request.headers.get("last-event-id") for request in script.requests] == [None, "4", "4"]
    assert script.requests[0].url.params["follow"] == "true"


def test_refused_stream_is_not_retried() -> None:
    missing = {"code": "workload-not-found", "detail": "there is none"}
    script = Script(lambda _: httpx2.Response(404, json=missing))
    with pytest.raises(ApiError) as caught:
        list(client(script).logs("w"))
    assert caught.value.code == "workload-not-found"
    assert len(script.requests) == 1


def test_error_event_in_stream_is_raised() -> None:
    problem = json.dumps({"code": "log-not-found", "detail": "it is gone", "status": 404})
    script = Script(stream(line("one", 4), f"event: error\ndata: {problem}\n\n"))
    with pytest.raises(ApiError) as caught:
        list(client(script).logs("w"))
    assert caught.value.code == "log-not-found"


@pytest.mark.anyio
async def test_events_resume_after_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_: float) -> None:
        pass

    monkeypatch.setattr("asyncio.sleep", at_once)

    def event(seq: int) -> str:
        data = {
            "seq": seq, "kind": "queued", "at": 1.0, "reason": COMPLETED, "workload_id": None, "attempt_id": None,
            "owner": None, "state": None,
        }  # fmt: skip
        return f"id: {seq}\nevent: queued\ndata: {json.dumps(data)}\n\n"

    script = Script(stream(event(8)), gateway, stream(), stream(event(9)), refused)
    seen = []
    async with AsyncClient("http://c", "t", http=httpx2.MockTransport(script), reconnect_timeout_s=1) as commonage:
        events = commonage.events(after=7)
        seen = [(await anext(events)).seq, (await anext(events)).seq]
        await events.aclose()
    assert seen == [8, 9]
    assert [request.headers["last-event-id"] for request in script.requests] == ["7", "8", "8", "8"]
    assert script.requests[0].headers["authorization"] == "Bearer t"


def test_retry_pause_doubles_up_to_two_seconds_and_resets() -> None:
    backoff, error = Backoff(6.0), Unreachable("x")
    assert [backoff.pause_after(error) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    with pytest.raises(Unreachable):
        backoff.pause_after(error)
    backoff.reset()
    assert backoff.pause_after(error) == 0.1


def test_waits_for_retry_after_and_raises_without_it() -> None:
    def too_many(retry_after: str | None) -> ApiError:
        return ApiError.of(429, b'{"code": "too-many-requests", "retryable": true}', retry_after)

    backoff = Backoff(3.0)
    assert may_repeat(False, too_many("2"), True)
    assert backoff.pause_after(too_many("2")) == 2.0
    assert not may_repeat(True, too_many(None), True)
    with pytest.raises(ApiError):
        Backoff(3.0).pause_after(too_many("60"))
