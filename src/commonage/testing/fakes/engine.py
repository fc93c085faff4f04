"""An engine without nodes: it simulates runs by the clock, and a test can trigger every failure.

Used by the tests of control, API and portal, and held to the engine contract itself. Deterministic: with a fake clock
the same calls give the same statuses (statuses). State that outlives an engine (its runs, logs, environments) is a
`FakeWorld`; a new engine on the same world is the old one after a restart.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import EnvironmentFailed, PreparingEnvironment, StoppedBeforeStart
from commonage.domain.reasons.engines import NotIsolated
from commonage.domain.statuses import Capabilities, LogLine, Measurement, Phase, ProcessOwner, StartRequest, Status
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream, NotRunning, Terminal
from commonage.testing.behaviour import KILLED, TERMINATED, Aside, Behaviour
from commonage.testing.fakes.exec import FakeExec
from commonage.testing.fakes.run import FakeLog, FakeRun, given_to

Matcher = Callable[[StartRequest], bool]
_FIRST_PORT = 20_000
_POLL_S = 0.1


@dataclass(slots=True)
class FakeWorld:
    """The state that outlives an engine. `starts` counts the real starts of each attempt: never more than one."""

    runs: dict[str, FakeRun] = field(default_factory=dict)
    logs: dict[str, FakeLog] = field(default_factory=dict)
    stopped_early: set[str] = field(default_factory=set)
    environments: dict[str, EnvironmentStatus] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    next_port: int = _FIRST_PORT


class FakeEngine(Engine):
    """A simulated implementation of the engine port.

    `default` is the behaviour of start requests that match no rule of `behave`: by default it runs for no time and
    exits with 0. Set `outage` to a sentence to have every call raise a retryable EngineFailure; `repeats` to have
    `watch` yield each status that many more times; `broken_environments[name]` to a sentence to have that environment
    fail.
    """

    def __init__(
        self,
        site: str,
        nodes: Iterable[NodeReport],
        clock: Clock,
        *,
        world: FakeWorld | None = None,
        default: Behaviour | None = None,
    ) -> None:
        self._site = site
        self._nodes = {node.name: node for node in nodes}
        self._clock = clock
        self._rules: list[tuple[Matcher, Behaviour]] = []
        self._changed = asyncio.Event()
        self._watchers: list[deque[Status]] = []
        self._on_progress: dict[str, Phase] = {}
        self.world = world or FakeWorld()
        self._lively = dict(self.world.runs)  # may still change
        self.default = default or Behaviour()
        self.outage: str | None = None
        self.repeats = 0
        self.broken_environments: dict[str, str] = {}
        self.prepare_s = 0.0
        self.prepared: list[tuple[str, str | None]] = []  # (environment, node) of each preparation
        self.owned: dict[int, ProcessOwner] = {}  # processes of the node, by pid
        self.asides: dict[tuple[str, ...], Aside] = {}  # behaviours of commands next to runs; all others copy
        self.execs: defaultdict[str, list[FakeExec]] = defaultdict(list)  # all commands so far, by attempt

    # --- controls for tests -------------------------------------------------------------------------------

    def behave(
        self,
        behaviour: Behaviour,
        *,
        name: str | None = None,
        command: tuple[str, ...] | None = None,
        attempt_id: str | None = None,
        times: int | None = None,
    ) -> None:
        """Start requests that match all given arguments act like `behaviour`.

        Later rules win. `times`: the number of starts to which the rule applies.
        """
        left = times

        def matches(request: StartRequest) -> bool:
            nonlocal left
            wanted = ((name, request.name), (command, request.command), (attempt_id, request.attempt_id))
            if left == 0 or any(stop is not None and stop != had for stop, had in wanted):
                return False
            left = None if left is None else left - 1
            return True

        self._rules.insert(0, (matches, behaviour))

    def end(self, attempt_id: str, exit_code: int | None = 0, reason: Reason | None = None) -> None:
        self.world.runs[attempt_id].cut(self._clock.now(), exit_code, reason)
        self._notice()

    def lose(self, attempt_id: str) -> None:
        """Make it vanish: no status mentions it any more."""
        self.world.runs[attempt_id].gone = True
        self._notice()

    def lose_node(self, name: str) -> None:
        """Remove the node with everything that runs on it.

        Neither the node nor its attempts are reported any more.
        """
        self._nodes.pop(name, None)
        for run in self._living():
            if run.request.allocation.node == name:
                run.gone = True
        self._notice()

    def give_up_node(self, name: str, why: Reason) -> None:
        """Like `lose_node`, but the node stays listed for ever, as given up."""
        report = replace(self._nodes[name], faults=(why,), gone=True)
        self.lose_node(name)
        self.add_node(report)

    def add_node(self, node: NodeReport) -> None:
        """Add a node, bring it back, or change its report."""
        self._nodes[node.name] = node

    def say(self, attempt_id: str, text: str) -> None:
        self.world.logs[attempt_id].write(text)
        self._notice()

    def repeat(self, attempt_id: str) -> None:
        """Report the current status once more in `watch`."""
        self._tell(self.world.runs[attempt_id].status(self._clock.now()))

    def processes(self, attempt_id: str) -> int:
        """The number of its processes now: its own, the child that it left, and commands next to it."""
        run = self.world.runs.get(attempt_id)
        beside = sum(1 + one.aside.leaves_child for one in self.execs[attempt_id] if one.code is None)
        if run is None or run.gone or run.phase(self._clock.now()) is not Phase.RUNNING:
            return beside
        return 1 + run.behaviour.leaves_child + beside

    # --- the port -----------------------------------------------------------------------------------------

    @property
    def site(self) -> str:
        return self._site

    def capabilities(self) -> Capabilities:
        notes = (NotIsolated(),)
        return Capabilities("fake", limits_memory=True, limits_cpu=True, mounts=True, notes=notes)

    async def open(self) -> None:
        self._check()

    async def start(self, request: StartRequest) -> None:
        self._check()
        if request.attempt_id in self.world.runs:
            return
        behaviour = next((behaves for matches, behaves in self._rules if matches(request)), self.default)
        if behaviour.refuses is not None:
            raise EngineFailure(behaviour.refuses, retryable=behaviour.refusal_retryable)
        if request.allocation.node not in self._nodes:
            raise EngineFailure(f"there is no node {request.allocation.node}", retryable=True)
        self._begin(request, behaviour)

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        self._check()
        run = self.world.runs.get(attempt_id)
        if run is None:
            self.world.stopped_early.add(attempt_id)
        else:
            run.stop(self._clock.now(), grace_s)
        self._notice()

    async def forget(self, attempt_id: str) -> None:
        self._check()
        run = self.world.runs.get(attempt_id)
        if run is not None and run.phase(self._clock.now()) is Phase.ENDED:
            run.forgotten = True

    async def statuses(self) -> Sequence[Status]:
        self._check()
        now = self._clock.now()
        return [run.status(now) for run in self._living()]

    async def watch(self) -> AsyncGenerator[Status]:
        mine: deque[Status] = deque()
        self._notice()
        self._watchers.append(mine)
        try:
            while True:
                while mine:
                    yield mine.popleft()
                await self._until_change()
                self._notice()
        finally:
            self._watchers.remove(mine)

    async def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine]:
        self._check()
        log = self.world.logs.get(attempt_id)
        if log is None:
            raise NotFound(f"there is no log of {attempt_id}", code="log-not-found")
        position = offset if tail is None else max(offset, log.tail_offset(tail))
        while True:
            ended = self.world.runs[attempt_id].phase(self._clock.now()) is Phase.ENDED
            for line in log.lines(position):
                yield line
                position = line.offset
            if ended or not follow:
                return
            await self._clock.sleep(_POLL_S)

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        self._check()
        run = self.world.runs.get(attempt_id)
        if run is None or run.gone or run.phase(self._clock.now()) is not Phase.RUNNING:
            raise NotRunning(f"{attempt_id} does not run")
        aside = self.asides.get(tuple(command), Aside(copies=True))
        made = FakeExec(aside, terminal, given_to(run.request, run.port))
        self.execs[attempt_id].append(made)
        return made

    async def measure(self) -> Sequence[Measurement]:
        self._check()
        now = self._clock.now()
        return [run.measurement(now) for run in self._living() if run.phase(now) is Phase.RUNNING]

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """The owners of running attempts' processes, and those that a test put into `owned`."""
        self._check()
        now = self._clock.now()
        running = [run for run in self._living() if run.phase(now) is Phase.RUNNING]
        known = {run.pid: ProcessOwner(run.pid, run.request.attempt_id, "python3", run.runs_at) for run in running}
        known |= self.owned
        return [known[pid] for pid in pids if pid in known]

    async def nodes(self) -> Sequence[NodeReport]:
        self._check()
        return list(self._nodes.values())

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Ready after `prepare_s`, or failed if it is in `broken_environments`."""
        self._check()
        self.prepared.append((environment.name, node))
        preparing = PreparingEnvironment(environment=environment.name, step="installing")
        on_progress(preparing, 0.5)
        self._stands(environment.name, EnvironmentState.BUILDING, preparing)
        await self._clock.sleep(self.prepare_s)
        broken = self.broken_environments.get(environment.name)
        if broken is not None:
            failed = EnvironmentFailed(environment=environment.name, error=broken)
            self._stands(environment.name, EnvironmentState.FAILED, failed)
            raise EngineFailure(failed)
        self._stands(environment.name, EnvironmentState.READY)

    async def environments(self) -> Sequence[EnvironmentStatus]:
        self._check()
        return list(self.world.environments.values())

    # --- simulation ---------------------------------------------------------------------------------------

    def _begin(self, request: StartRequest, behaviour: Behaviour) -> None:
        now, world = self._clock.now(), self.world
        run = FakeRun(request, behaviour, now)
        log = world.logs.setdefault(request.attempt_id, FakeLog())
        world.runs[request.attempt_id] = self._lively[request.attempt_id] = run
        broken = self.broken_environments.get(request.environment.name)
        if request.attempt_id in world.stopped_early:
            run.cut_at, run.cut_code, run.cut_reason = now, TERMINATED, StoppedBeforeStart()
        elif broken is not None:
            failed = EnvironmentFailed(environment=request.environment.name, error=broken)
            self._stands(request.environment.name, EnvironmentState.FAILED, failed)
            run.cut_at, run.cut_code, run.cut_reason = now, 1, failed
        else:
            self._stands(request.environment.name, EnvironmentState.READY)
            world.starts[request.attempt_id] += 1
            self._act(run, log)
        self._notice()

    def _act(self, run: FakeRun, log: FakeLog) -> None:
        if run.request.wants_port:
            run.url = f"http://127.0.0.1:{self.world.next_port}"
            self.world.next_port += 1
        given = given_to(run.request, run.port)
        for text in run.behaviour.prints:
            log.write(text)
        for name in run.behaviour.shows:
            log.write(f"{name}={given.get(name, '')}")

    def _stands(self, name: str, state: EnvironmentState, reason: Reason | None = None) -> None:
        self.world.environments[name] = EnvironmentStatus(name, self._site, state, reason)

    def _check(self) -> None:
        if self.outage is not None:
            raise EngineFailure(self.outage, retryable=True)

    def _living(self) -> list[FakeRun]:
        now = self._clock.now()
        return [run for run in self.world.runs.values() if not run.is_gone(now)]

    def _notice(self) -> None:
        now = self._clock.now()
        for attempt_id, run in list(self._lively.items()):
            if run.is_gone(now):
                del self._lively[attempt_id]
                self._end_execs(attempt_id)
                continue
            status = run.status(now)
            if status.phase is Phase.ENDED:
                del self._lively[attempt_id]
                self._end_execs(attempt_id)
            if self._on_progress.get(attempt_id) is not status.phase:
                self._on_progress[attempt_id] = status.phase
                for _ in range(1 + self.repeats):
                    self._tell(status)
        self._changed.set()

    def _end_execs(self, attempt_id: str) -> None:
        for one in self.execs[attempt_id]:
            one.end(KILLED)

    def _tell(self, status: Status) -> None:
        for queue in self._watchers:
            queue.append(status)
        self._changed.set()

    async def _until_change(self) -> None:
        """Return after a change by a test, or when the clock reaches the next instant at which a run changes."""
        self._changed.clear()
        now = self._clock.now()
        instants = [at for run in self._lively.values() if (at := run.changes_at(now)) is not None]
        ordered = asyncio.ensure_future(self._changed.wait())
        waits: set[asyncio.Future[object]] = {ordered}  # type: ignore[arg-type]  # it is only waited for
        if instants:
            waits.add(asyncio.ensure_future(self._clock.sleep(min(instants) - now)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()
