"""A scripted student: a browser's cookies and pages, JupyterLab's own requests, and a kernel's WebSocket.

Each step writes a file to the home, which is compared at the end of the day.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from benchmarks.kernel import Kernel
from benchmarks.report import BenchmarkError, progress
from commonage.wire.hub import PORTAL_PATH

CLASS = "ml101"
MATERIAL = "course"
LESSON, NEXT_LESSON = "week-1/lab.py", "week-2/lab.py"
_HERE = f"materials/{MATERIAL}"
_RUNS, _MAY_START = f"classes/{CLASS}/session", f"classes/{CLASS}/start"
_EDITED = "my own answer\n"
_POLL_S = 1.0
_WITHIN_S = 600.0
_CELL_WITHIN_S = 180.0
_PATIENT = aiohttp.ClientTimeout(total=_WITHIN_S)
_RELOAD = aiohttp.ClientTimeout(total=5.0)
_REDIRECTS = (301, 302, 303, 307, 308)
_ERRORS = (aiohttp.ClientError, TimeoutError, BenchmarkError, KeyError, ValueError)
_STEP = """
import os, pathlib
steps = pathlib.Path.home() / "steps"
steps.mkdir(exist_ok=True)
with (steps / {step!r}).open("w") as file:
    file.write({text!r})
    file.flush()
    os.fsync(file.fileno())
"""


@dataclass
class Times:
    """Seconds, for each student or cell. `reloads`: of TensorBoard, when it did not start in time."""

    sign_in: list[float] = field(default_factory=list)
    to_lab: list[float] = field(default_factory=list)
    first_cell: list[float] = field(default_factory=list)
    cell: list[float] = field(default_factory=list)
    tensorboard: list[float] = field(default_factory=list)
    restart: list[float] = field(default_factory=list)
    material: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    reloads: int = 0


class Gate:
    """Opens when `count` have arrived."""

    def __init__(self, count: int) -> None:
        self._missing, self._opened = count, asyncio.Event()

    async def come(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._opened.set()
        await self._opened.wait()


class Student:
    """`http` keeps the cookies of this student alone; `base` is the address of the edge."""

    def __init__(self, name: str, password: str, base: str, http: aiohttp.ClientSession, times: Times) -> None:
        self.name, self.errors, self.lost = name, list[str](), list[str]()
        self._password, self._base, self._http, self._times = password, base, http, times
        host = URL(base).host
        self._session = f"https://{name}.{host}/user/{name}/{CLASS}/"
        self._written: dict[str, str] = {}

    # --- the day ----------------------------------------------------------------------------------------------------

    async def attempt(self, step: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """One step. A failure is recorded as an error, and the student continues with the next step."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                await step(*arguments)
        except _ERRORS as error:
            self.errors.append(f"{self.name}: {step.__name__}: {type(error).__name__} {error}"[:1000])
            progress(self.errors[-1])

    async def morning(self, original: str, cells: int) -> None:
        await self.attempt(self.work, "morning", cells)
        await self.attempt(self.open_tensorboard)
        await self.attempt(self.edit_lesson, original)

    async def afternoon(self, pushed_at: float, next_lesson: str, original: str, cells: int) -> None:
        await self.attempt(self.await_lesson, pushed_at, next_lesson)
        await self.attempt(self.restart)
        await self.attempt(self.reset_lesson, original)
        await self.attempt(self.work, "afternoon", cells)

    async def evening(self, cells: int, at_work: Gate, power_cut: asyncio.Future[float] | None) -> None:
        """A kernel is open when a worker loses its power. `power_cut`: when it was, for students of that worker."""
        await self.attempt(self._work_through, cells, at_work, power_cut)

    async def _work_through(self, cells: int, at_work: Gate, power_cut: asyncio.Future[float] | None) -> None:
        async with AsyncExitStack() as closing:
            try:
                kernel = await closing.enter_async_context(self.kernel())
                await self.compute(kernel, "before", 1)
            finally:
                await at_work.come()
            if power_cut is None:
                await self.compute(kernel, "evening", cells)
            else:
                await self.work_again(await asyncio.shield(power_cut), cells)

    # --- the parts of a day ---------------------------------------------------------------------------------------

    async def arrive(self) -> None:
        """Follow the teacher's link, sign in, and come into the running JupyterLab."""
        began = time.monotonic()
        url, page = await self._visit("GET", self._portal(_RUNS))
        if url.path != "/hub/login" or (found := re.search(r'name="_xsrf" value="([^"]+)"', page)) is None:
            raise BenchmarkError(f"the class link led to {url} instead of the sign-in")
        form = {"username": self.name, "password": self._password, "_xsrf": found[1]}
        submitted, seen = time.monotonic(), dict[str, float]()
        url, page = await self._visit("POST", str(url), form, seen)
        signed_in = min((at for host, at in seen.items() if host != URL(self._base).host), default=time.monotonic())
        self._times.sign_in.append(signed_in - began)
        if not self._is_lab(url, page):
            raise BenchmarkError(f"the sign-in led to {url} instead of JupyterLab: {_text(page)}")
        self._times.to_lab.append(time.monotonic() - submitted)

    async def work(self, part: str, cells: int) -> None:
        async with self.kernel() as kernel:
            await self.compute(kernel, part, cells)

    async def compute(self, kernel: Kernel, part: str, cells: int) -> None:
        for number in range(cells):
            await self._step(kernel, f"{part}-{number}")

    async def open_tensorboard(self) -> None:
        began = time.monotonic()
        while True:
            async with self._http.get(f"{self._session}tensorboard/", timeout=_PATIENT) as answer:
                page = await answer.text()
            if answer.status != 500 or "in time" not in page:
                break
            self._times.reloads += 1  # the session gave up; its page reloads by itself
        if answer.status != 200 or "<title>TensorBoard</title>" not in page:
            raise BenchmarkError(f"TensorBoard answered {answer.status}: {_text(page)}")
        async with self._http.get(f"{self._session}tensorboard/data/environment") as answer:
            if answer.status != 200 or "version" not in await answer.json():
                raise BenchmarkError(f"TensorBoard's data answered {answer.status}")
        self._times.tensorboard.append(time.monotonic() - began)

    async def edit_lesson(self, original: str) -> None:
        if (found := await self._read(f"{_HERE}/{LESSON}")) != original:
            raise BenchmarkError(f"the lesson is {found!r} instead of the original")
        body = {"type": "file", "format": "text", "content": _EDITED}
        await self._jupyter("PUT", f"api/contents/{_HERE}/{LESSON}", body)

    async def await_lesson(self, pushed_at: float, content: str) -> None:
        """Wait for the new lesson. The edited old one must stay, with the new version in the same folder."""
        while await self._read(f"{_HERE}/{NEXT_LESSON}") != content:
            await asyncio.sleep(_POLL_S)
        self._times.material.append(time.monotonic() - pushed_at)
        if (found := await self._read(f"{_HERE}/{LESSON}")) != _EDITED:
            raise BenchmarkError(f"the push changed the edited lesson to {found!r}")
        if not any(".new-" in one for one in await self._names(f"{_HERE}/{LESSON}".rpartition("/")[0])):
            raise BenchmarkError("the new version of the edited lesson is missing")

    async def restart(self) -> None:
        """Stop the session in the portal and start it again on the page of the class."""
        async with self.kernel() as kernel:
            before = await _workload(kernel)
        began = time.monotonic()
        csrf = await self._csrf(f"classes/{CLASS}")
        await self._visit("POST", self._portal(f"workloads/{before}/stop"), {"csrf": csrf})
        while _MAY_START not in await self._class_page():
            await asyncio.sleep(_POLL_S)
        await self._visit("POST", self._portal(_MAY_START), {"csrf": csrf})
        await self._enter_class()
        self._times.restart.append(time.monotonic() - began)
        async with self.kernel() as kernel:
            if await _workload(kernel) == before:
                raise BenchmarkError("the session is the one that was stopped")

    async def reset_lesson(self, original: str) -> None:
        csrf = await self._csrf("materials")
        await self._visit("POST", self._portal(f"materials/{MATERIAL}/reset"), {"csrf": csrf, "file": LESSON})
        if (found := await self._read(f"{_HERE}/{LESSON}")) != original:
            raise BenchmarkError(f"after the reset the lesson is {found!r} instead of the original")
        folder = f"{_HERE}/{LESSON}".rpartition("/")[0]
        kept = [one for one in await self._names(folder) if ".mine-" in one]
        if [await self._read(f"{folder}/{one}") for one in kept] != [_EDITED]:
            raise BenchmarkError(f"the reset did not keep the edit: {kept}")

    async def work_again(self, since: float, cells: int) -> None:
        """After the loss of the node: as soon as the session is there again, elsewhere."""
        while not await self._serves():
            await asyncio.sleep(_POLL_S)
        async with self.kernel() as kernel:
            await self._step(kernel, "again")
            self._times.again.append(time.monotonic() - since)
            await self.compute(kernel, "evening", cells)

    async def compare(self) -> None:
        """Note each file that JupyterLab does not show as it was written."""
        found = {name: await self._read(f"steps/{name}") for name in await self._names("steps")}
        self.lost += [
            f"{self.name}: {name}: {found.get(name)!r} instead of {text!r}"
            for name, text in self._written.items()
            if found.get(name) != text
        ]

    @property
    def steps(self) -> int:
        """Number of files that were written."""
        return len(self._written)

    # --- the kernel -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kernel(self) -> AsyncIterator[Kernel]:
        """A new kernel, and its first cell."""
        await self._enter_lab()
        began = time.monotonic()
        kernel = (await self._jupyter("POST", "api/kernels", {"name": "python3"}))["id"]
        url = f"{self._session}api/kernels/{kernel}/channels"
        async with self._http.ws_connect(url, headers=self._xsrf(), max_msg_size=1 << 26) as channel:
            made = Kernel(channel, _CELL_WITHIN_S)
            await made.run("print(1 + 1)")
            self._times.first_cell.append(time.monotonic() - began)
            yield made
        with suppress(*_ERRORS):
            await self._jupyter("DELETE", f"api/kernels/{kernel}")

    async def _step(self, kernel: Kernel, step: str) -> None:
        """A cell that writes the file of this step."""
        text = f"{self.name} {step}"
        began = time.monotonic()
        await kernel.run(_STEP.format(step=step, text=text))
        self._times.cell.append(time.monotonic() - began)
        self._written[step] = text

    # --- JupyterLab -----------------------------------------------------------------------------------------------

    async def _enter_lab(self) -> None:
        """Load the page, through the hub's page of a starting server if need be.

        A session that has started again knows no cookie of before.
        """
        while True:
            url, page = await self._visit("GET", f"{self._session}lab")
            if self._is_lab(url, page):
                return
            if "/hub/spawn-pending/" not in url.path:
                raise BenchmarkError(f"{self._session}lab led to {url}: {_text(page)}")
            await asyncio.sleep(_POLL_S)

    async def _enter_class(self) -> None:
        """By the link of the class, through the portal's page of a session that is not open yet if need be."""
        link = URL(self._portal(_RUNS))
        while True:
            url, page = await self._visit("GET", str(link))
            if self._is_lab(url, page):
                return
            if url != link:
                raise BenchmarkError(f"the class link led to {url} instead of JupyterLab: {_text(page)}")
            await asyncio.sleep(_POLL_S)

    def _is_lab(self, url: URL, page: str) -> bool:
        return str(url).startswith(self._session) and "jupyter-config-data" in page

    async def _serves(self) -> bool:
        """True if the session itself answers, not the hub or the proxy in its place."""
        with suppress(*_ERRORS):
            # The proxy may have sent the request into a dead connection: reload.
            async with self._http.get(f"{self._session}api", allow_redirects=False, timeout=_RELOAD) as answer:
                return answer.status == 200 and "version" in await answer.json()
        return False

    async def _jupyter(self, method: str, path: str, body: object = None) -> Any:
        """Raises BenchmarkError unless the status is a success."""
        headers = self._xsrf()
        async with self._http.request(method, f"{self._session}{path}", json=body, headers=headers) as answer:
            if not answer.ok:
                raise BenchmarkError(f"{method} {path}: {answer.status} {_text(await answer.text())}")
            return await answer.json() if answer.content_type == "application/json" else None

    def _xsrf(self) -> dict[str, str]:
        cookie = self._http.cookie_jar.filter_cookies(URL(self._session)).get("_xsrf")
        return {} if cookie is None else {"X-XSRFToken": cookie.value}

    async def _read(self, path: str) -> str | None:
        """The text of a file in the home; None without one."""
        url = f"{self._session}api/contents/{quote(path)}?type=file&format=text"
        async with self._http.get(url, headers=self._xsrf()) as answer:
            if answer.status == 404:
                return None
            if not answer.ok:
                raise BenchmarkError(f"{path}: {answer.status} {_text(await answer.text())}")
            return str((await answer.json())["content"])

    async def _names(self, folder: str) -> list[str]:
        found = await self._jupyter("GET", f"api/contents/{quote(folder)}?content=1")
        return [str(one["name"]) for one in found["content"]]

    # --- pages ------------------------------------------------------------------------------------------------------

    def _portal(self, path: str) -> str:
        return f"{self._base}{PORTAL_PATH}{path}"

    async def _class_page(self) -> str:
        return (await self._visit("GET", self._portal(f"classes/{CLASS}")))[1]

    async def _csrf(self, path: str) -> str:
        url, page = await self._visit("GET", self._portal(path))
        if (found := re.search(r'name="csrf" value="([^"]+)"', page)) is None:
            raise BenchmarkError(f"{url} has no form")
        return found[1]

    async def _visit(
        self,
        method: str,
        url: str,
        form: dict[str, str] | None = None,
        seen: dict[str, float] | None = None,
    ) -> tuple[URL, str]:
        """The final URL after redirects, and its page. `seen` gets the time of the first request to each host."""
        at = URL(url)
        for _ in range(30):
            if seen is not None:
                seen.setdefault(str(at.host), time.monotonic())
            async with self._http.request(method, at, data=form, allow_redirects=False) as answer:
                if answer.status not in _REDIRECTS:
                    page = await answer.text()
                    if not answer.ok:
                        raise BenchmarkError(f"{method} {at}: {answer.status} {_text(page)}")
                    return at, page
                at = at.join(URL(answer.headers["Location"], encoded=True))
                if answer.status in (302, 303):
                    method, form = "GET", None
        raise BenchmarkError(f"{url} redirects without end")


async def _workload(kernel: Kernel) -> str:
    return (await kernel.run("import os; print(os.environ['COMMONAGE_WORKLOAD_ID'])")).strip()


def _text(page: str) -> str:
    """The words of a page, for an error."""
    return " ".join(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL).split())[:300]
