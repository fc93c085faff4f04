"""Runs traefik, and serves the pages that traefik shows while hub, control plane or a session do not answer.

traefik cannot make a page, and these pages must work when all else is down, so both run in one process group:
`python -m commonage.server.processes.unavailable RULES_FOLDER ENTRY_POINTS TRAEFIK ARGUMENT...` (see `processes.hub`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commonage.server.processes.children import end_with_parent
from commonage.wire.origins import SESSION_UNAVAILABLE, UNAVAILABLE

RETRY_AFTER_S = 5
_LOOPBACK = "127.0.0.1"
_NO_ROUTE = "no-route"
_HEAD_MAX_BYTES = 256 * 1024
_HEAD_WITHIN_S = 10.0
_TITLE = "Commonage is not available"
_DETAIL = "The server is starting or restarting, or a part of it has failed. Running sessions and jobs continue."
_SESSION_PATH = "/session"
_SESSION_TITLE = "This session does not answer"
_SESSION_DETAIL = (
    "It has ended, or its node cannot be reached. As soon as this is certain, this page says so, or shows how the "
    "session starts again. Saved files are kept."
)
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{margin:0;min-height:100vh;display:grid;place-items:center;background:light-dark(#f5f7f5,#0d1110);"
    "color:light-dark(#17211b,#e4eae6);font:400 16px/1.5 system-ui,sans-serif}"
    "main{max-width:34rem;padding:24px}h1{margin:0 0 12px;font-size:24px;line-height:1.25}p{margin:0 0 12px}"
    ".muted{color:light-dark(#5a665f,#98a59d);font-size:14px}"
)
_PROBLEM = json.dumps(
    {
        "type": "urn:commonage:problem:unavailable",
        "title": _TITLE,
        "status": 503,
        "code": "unavailable",
        "detail": f"{_DETAIL} Try again in {RETRY_AFTER_S} seconds.",
        "retryable": True,
    }
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_CSP = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _page(title: str, detail: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{RETRY_AFTER_S}"><style>{_STYLE}</style></head>
<body><main><h1>{title}</h1><p>{detail}</p>
<p>This page reloads every {RETRY_AFTER_S} seconds.</p>
<p class="muted">If this lasts longer than a few minutes, tell your administrator.</p></main></body></html>
"""


def answer_to(head: bytes) -> bytes:
    """The whole answer to a request: the page for a browser that opens one, problem+json for all other clients."""
    fields = head.decode("latin-1").lower().split("\r\n")[1:]
    wants_page = any(
        name == "accept" and "text/html" in text for name, _, text in (one.partition(":") for one in fields)
    )
    of_session = head.split(b" ", 2)[1:2] == [_SESSION_PATH.encode()]
    page = _page(_SESSION_TITLE, _SESSION_DETAIL) if of_session else _page(_TITLE, _DETAIL)
    kind, text = ("text/html; charset=utf-8", page) if wants_page else ("application/problem+json", _PROBLEM)
    body = text.encode()
    headers = {
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        "Retry-After": str(RETRY_AFTER_S),
        "Cache-Control": "no-store",
        "Content-Security-Policy": _CSP,
        "X-Content-Type-Options": "nosniff",
        "Vary": "Accept",
        "Connection": "close",
    }
    lines = ["HTTP/1.1 503 Service Unavailable", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def rules(port: int, entry_points: Sequence[str]) -> dict[str, object]:
    """traefik's dynamic configuration: middlewares that show the pages served at `port`, and a route for the rest.

    Hub and control plane answer 503 themselves when they have a reason to give, so theirs is not replaced. 502 and
    504 come only from traefik.
    """

    def shows_page(*codes: str, path: str = "/") -> dict[str, object]:
        return {
            "errors": {
                "status": codes,
                "statusRewrites": dict.fromkeys(codes, 503),
                "service": UNAVAILABLE,
                "query": path,
            }
        }

    return {
        "http": {
            "middlewares": {
                UNAVAILABLE: shows_page("502", "504"),
                SESSION_UNAVAILABLE: shows_page("502", "504", path=_SESSION_PATH),
                _NO_ROUTE: shows_page("503"),
            },
            "services": {
                UNAVAILABLE: {"loadBalancer": {"servers": [{"url": f"http://{_LOOPBACK}:{port}"}]}},
                # Without a server traefik answers 503 and does not read the body of the request.
                _NO_ROUTE: {"loadBalancer": {"servers": []}},
            },
            "routers": {
                _NO_ROUTE: {
                    "rule": "PathPrefix(`/`)",
                    "priority": 1,  # below every other route
                    "entryPoints": list(entry_points),
                    "middlewares": [_NO_ROUTE],
                    "service": _NO_ROUTE,
                }
            },
        }
    }


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        async with asyncio.timeout(_HEAD_WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer_to(head))
        await writer.drain()
    writer.close()


async def run(rules_folder: Path, entry_points: Sequence[str], command: Sequence[str]) -> int:
    """Serve the page, tell traefik its address by a file in `rules_folder`, and run traefik. Returns its exit code."""
    server = await asyncio.start_server(_serve, _LOOPBACK, 0, limit=_HEAD_MAX_BYTES)
    async with server:
        port = server.sockets[0].getsockname()[1]
        rules_file = rules_folder / "unavailable.yaml"
        fresh = rules_file.with_suffix(".new")  # traefik ignores this name
        fresh.write_text(json.dumps(rules(port, entry_points)), encoding="utf-8")
        fresh.replace(rules_file)
        process = await asyncio.create_subprocess_exec(*command, preexec_fn=end_with_parent())
        loop = asyncio.get_running_loop()
        # A signal to the group has reached traefik as well; a second one does no harm.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _pass_on, process, number)
        code = await process.wait()
    return code if code >= 0 else 128 - code


def _pass_on(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def main(arguments: Sequence[str]) -> int:
    """`arguments`: the folder of rules, traefik's entry points with commas between, and traefik's command."""
    rules_folder, entry_points, *command = arguments
    return asyncio.run(run(Path(rules_folder), entry_points.split(","), command))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
