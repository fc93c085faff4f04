"""Pages of the proxy while hub and control plane are down; tests/integration has the same through traefik."""

import base64
import hashlib
import json
import re

import pytest

from commonage.server.processes.unavailable import RETRY_AFTER_S, answer_to, rules
from commonage.wire.reasons import Problem

BROWSER = b"GET /hub/home HTTP/1.1\r\nHost: hub\r\nAccept: text/html,application/xhtml+xml,*/*;q=0.8\r\n\r\n"


def answered(head: bytes) -> tuple[dict[str, str], str]:
    first, _, body = answer_to(head).decode().partition("\r\n\r\n")
    status, *lines = first.split("\r\n")
    assert status == "HTTP/1.1 503 Service Unavailable"
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body.encode())
    assert (headers["Retry-After"], headers["Cache-Control"]) == (str(RETRY_AFTER_S), "no-store")
    return headers, body


def test_a_browser_gets_a_page_that_reloads_itself_without_a_script() -> None:
    headers, page = answered(BROWSER)
    assert f'<meta http-equiv="refresh" content="{RETRY_AFTER_S}">' in page
    assert "<script" not in page
    assert "color-scheme:light dark" in page
    [style] = re.findall(r"<style>(.*)</style>", page)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in headers["Content-Security-Policy"]


def test_a_page_of_a_session_speaks_about_the_session() -> None:
    assert "This session does not answer" in answered(BROWSER.replace(b"/hub/home", b"/session"))[1]
    made = rules(1234, ["http"])["http"]
    assert isinstance(made, dict)
    assert made["middlewares"]["session-unavailable"]["errors"]["query"] == "/session"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/event-stream"])
def test_everybody_else_gets_a_problem_document(accept: str) -> None:
    headers, body = answered(f"POST /x HTTP/1.1\r\naccept: {accept}\r\nX-Note: text/html\r\n\r\n".encode())
    assert headers["Content-Type"] == "application/problem+json"
    problem = Problem(**json.loads(body))
    assert (problem.status, problem.code, problem.retryable) == (503, "unavailable", True)


def test_what_hub_and_control_plane_answer_themselves_is_not_replaced() -> None:
    made = json.dumps(rules(1234, ["http"]))
    shown = json.loads(made)["http"]["middlewares"]["unavailable"]["errors"]
    assert shown["status"] == ["502", "504"]
    assert set(shown["statusRewrites"].values()) == {503}
    assert "http://127.0.0.1:1234" in made
