"""The cache equals a fresh list after any history of changes, cut watches, expired versions and outages."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.engines.kubernetes import cache as module
from commonage.engines.kubernetes.cache import Cache, Event, Expired, Listed

NAMES = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("put", "replace", "delete")), st.sampled_from(NAMES)),
        st.tuples(st.sampled_from(("cut", "forget", "outage", "bookmark", "rest")), st.just("")),
    ),
    max_size=40,
)


@dataclass
class Server:
    """A list with versions. `forget` makes it know no version before the present one."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[tuple[int, Event]] = field(default_factory=list)
    version: int = 1
    oldest: int = 1
    outages: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    cuts: int = 0

    def do(self, step: str, name: str) -> None:
        if step in ("put", "replace"):
            before = self.objects.get(name)
            if step == "replace" and before is not None:
                self.do("delete", name)
                before = None
            self.version += 1
            uid = before["metadata"]["uid"] if before else f"{name}{self.version}"
            made = {"metadata": {"name": name, "uid": uid, "resourceVersion": str(self.version)}}
            self.objects[name] = made
            self.tell("MODIFIED" if before else "ADDED", made)
        elif step == "delete" and name in self.objects:
            self.version += 1
            gone = self.objects.pop(name)
            self.tell("DELETED", {"metadata": {**gone["metadata"], "resourceVersion": str(self.version)}})
        elif step == "bookmark":
            self.tell("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})
        elif step == "forget":
            self.version += 1
            self.oldest = self.version
            self.cuts += 1
        elif step == "cut":
            self.cuts += 1
        elif step == "outage":
            self.cuts += 1
            self.outages = 2
        self.changed.set()

    def tell(self, kind: str, manifest: dict[str, Any]) -> None:
        self.history.append((self.version, Event(kind, manifest)))

    def _answer(self) -> None:
        if self.outages:
            self.outages -= 1
            raise EngineFailure("away", retryable=True)

    async def list_all(self) -> Listed:
        self._answer()
        return Listed(list(self.objects.values()), str(self.version))

    async def watch(self, version: str) -> AsyncGenerator[Event]:
        self._answer()
        if int(version) < self.oldest:
            raise Expired("too old")
        seen, cuts = int(version), self.cuts
        while True:
            for at, event in [one for one in self.history if one[0] > seen]:
                if self.cuts != cuts:
                    raise EngineFailure("cut", retryable=True)
                seen = at
                yield event
            if self.cuts != cuts:
                raise EngineFailure("cut", retryable=True)
            self.changed.clear()
            await self.changed.wait()


@given(steps=STEPS)
def test_equals_a_fresh_list_after_any_history(steps: Sequence[tuple[str, str]]) -> None:
    asyncio.run(_after(steps))


async def _after(steps: Sequence[tuple[str, str]]) -> None:
    server = Server()
    told: dict[str, str] = {}

    def on_change(manifest: dict[str, Any], deleted: bool) -> None:
        name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
        if deleted:
            assert told.pop(name) == uid, "what is reported as deleted was reported as there"
        else:
            assert told.get(name, uid) == uid, "another object of the name is reported as deleted first"
            told[name] = uid

    cache = Cache(server, on_change, "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAUSE_MIN_S", 0.0)
        keeping = asyncio.create_task(cache.keep(Iterations("test", lambda: 0.0)))
        for step, name in steps:
            server.do(step, name)
            if step == "rest":
                for _ in range(10):
                    await asyncio.sleep(0)
        for _ in range(500):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    fresh = {one["metadata"]["name"]: one for one in server.objects.values()}
    assert {one["metadata"]["name"]: one for one in cache.objects} == fresh
    assert told == {name: one["metadata"]["uid"] for name, one in fresh.items()}


def test_the_list_after_an_outage_is_not_delayed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    rest = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await rest(0)

    async def follow() -> None:
        server = Server()
        cache = Cache(server, lambda _manifest, _deleted: None, "test")
        await cache.sync()
        server.do("forget", "")
        server.outages = 8
        keeping = asyncio.create_task(cache.keep(Iterations("test", lambda: 0.0)))
        for _ in range(200):
            await rest(0)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert not cache.fault

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(follow())
    assert len(pauses) == 9, "eight for the outage, and one for the version that has expired"
    assert pauses[-2] > 5 * module._PAUSE_MIN_S
    assert pauses[-1] <= module._PAUSE_MIN_S
