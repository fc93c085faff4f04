"""A command next to a run of the fake engine: simulated at once, without a process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from commonage.ports.execs import ERR, OUT, Terminal
from commonage.testing.behaviour import Aside

HUNG_UP = 129


class FakeExec:
    """Implements `ports.execs.ExecStream`. `variables` are the attempt's; `code` is None while it continues."""

    def __init__(self, aside: Aside, terminal: Terminal | None, variables: Mapping[str, str]) -> None:
        self.aside, self.terminal = aside, terminal
        self._said: list[tuple[int, bytes]] = []
        self._news = asyncio.Event()
        self.code: int | None = None
        self._begin(variables)

    def _begin(self, variables: Mapping[str, str]) -> None:
        aside = self.aside
        for text in (aside.prints, *(f"{name}={variables.get(name, '')}" for name in aside.shows)):
            self._say(OUT, f"{text}\n" if text else "")
        self._say(ERR, f"{aside.complains}\n" if aside.complains else "")
        if aside.tells_size:
            self._tell_size()
        elif not (aside.copies or aside.floods or aside.lasts):
            self.end(aside.exit_code)

    def _say(self, stream: int, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        if not data:
            return
        if self.terminal is not None:
            stream, data = OUT, data.replace(b"\n", b"\r\n")
        self._said.append((stream, data))
        self._news.set()

    def _tell_size(self) -> None:
        size = self.terminal or Terminal(0, 0)
        self._say(OUT, f"{size.rows} {size.columns}\n")

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self._news.set()

    # --- the port -------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        if self.code is not None:
            return
        if self.terminal is not None and data.endswith(b"\x04"):
            self.end(self.aside.exit_code)
        elif self.aside.copies:
            self._say(OUT, data)
        elif self.aside.tells_size:
            for _ in range(data.count(b"\n")):
                self._tell_size()

    async def close_stdin(self) -> None:
        if self.terminal is None and (self.aside.copies or self.aside.tells_size):
            self.end(self.aside.exit_code)

    async def resize(self, columns: int, rows: int) -> None:
        if self.terminal is not None:
            self.terminal = Terminal(columns, rows, self.terminal.kind)

    async def read(self) -> tuple[int, bytes] | None:
        while not self._said:
            if self.code is not None:
                return None
            if self.aside.floods:
                await asyncio.sleep(0)
                return OUT, b"0123456789\n" * 100
            self._news.clear()
            await self._news.wait()
        return self._said.pop(0)

    async def exit_code(self) -> int:
        while self.code is None:
            self._news.clear()
            await self._news.wait()
        return self.code

    async def close(self) -> None:
        if self.code is None:
            self._said.clear()
        self.end(HUNG_UP)
