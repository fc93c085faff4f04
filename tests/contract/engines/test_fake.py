"""The engine contract on the fake engine, and on fakes that are broken on purpose: each of those must be found out."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.images import Environment
from commonage.domain.iterations import Iterations
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import NodeReport
from commonage.domain.statuses import LogLine, Measurement, Phase, StartRequest, Status
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.execs import OUT, Terminal
from commonage.testing.behaviour import TERMINATED, Aside, Behaviour
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig, StartRequestFactory
from commonage.testing.exec_contract import ExecContract
from commonage.testing.fakes.clock import FakeClock
from commonage.testing.fakes.engine import FakeEngine, FakeWorld
from commonage.testing.fakes.exec import FakeExec

NODE = NodeReport("node-1", 8000, 16384, usage=NodeUsage(1.5, 4096, 1000, 2000))


class FakeRig(EngineRig):
    """A fake engine, its world, and the behaviours behind the commands that were asked for."""

    def __init__(self, make: type[FakeEngine] = FakeEngine) -> None:
        self.clock = FakeClock()
        self.world = FakeWorld()
        self._make = make
        self._behaviours: dict[tuple[str, ...], Behaviour] = {}
        self._asides: dict[tuple[str, ...], Aside] = {}
        self._engine: FakeEngine | None = None
        self.start_request = StartRequestFactory(Environment("base", "Base"), NODE.name, self._command, self.clock.now)
        self.broken_environment = Environment("broken", "Cannot be")

    def aside(self, aside: Aside) -> tuple[str, ...]:
        command = ("aside", str(len(self._asides)))
        self._asides[command] = aside
        if self._engine is not None:
            self._engine.asides[command] = aside
        return command

    def _command(self, behaviour: Behaviour) -> tuple[str, ...]:
        command = ("act", str(len(self._behaviours)))
        self._behaviours[command] = replace(behaviour, start_delay_s=behaviour.start_delay_s or 0.02)
        if self._engine is not None:
            self._engine.behave(self._behaviours[command], command=command)
        return command

    async def engine(self) -> FakeEngine:
        if self._engine is None:
            self._engine = self._make("site", [NODE], self.clock, world=self.world)
            self._engine.broken_environments["broken"] = "no such package"
            self._engine.asides |= self._asides
            for command, behaviour in self._behaviours.items():
                self._engine.behave(behaviour, command=command)
            await self._engine.open()
        return self._engine

    async def restart(self) -> FakeEngine:
        if self._engine is not None:
            await self._engine.close()
        self._engine = None
        return await self.engine()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def processes(self, attempt: str) -> int:
        return (await self.engine()).processes(attempt)


class TestFakeEngine(EngineContract, ExecContract):
    @pytest.fixture
    def rig(self) -> EngineRig:
        return FakeRig()


# --- broken on purpose ----------------------------------------------------------------------------------------


class StartsTwice(FakeEngine):
    async def start(self, request: StartRequest) -> None:
        known = request.attempt_id in self.world.runs
        await super().start(request)
        if known:
            self.say(request.attempt_id, "here")


class StartsAgainWhatEnded(FakeEngine):
    async def start(self, request: StartRequest) -> None:
        run = self.world.runs.get(request.attempt_id)
        if run is not None and run.phase(self._clock.now()) is Phase.ENDED:
            del self.world.runs[request.attempt_id]
        await super().start(request)


class StartsAgainWhatIsForgotten(FakeEngine):
    async def forget(self, attempt_id: str) -> None:
        await super().forget(attempt_id)
        self.world.runs.pop(attempt_id, None)


class RunsWhatWasStopped(FakeEngine):
    async def stop(self, attempt_id: str, grace_s: float) -> None:
        if attempt_id in self.world.runs:
            await super().stop(attempt_id, grace_s)


class ForgetsAtRestart(FakeEngine):
    async def open(self) -> None:
        self.world.runs.clear()


class LosesExitCodesAtRestart(FakeEngine):
    async def open(self) -> None:
        for run in self.world.runs.values():
            run.behaviour = replace(run.behaviour, exit_code=None)


class LosesExitCodes(FakeEngine):
    async def statuses(self) -> Sequence[Status]:
        return [
            replace(status, exit_code=0 if status.exit_code else status.exit_code)
            for status in await super().statuses()
        ]


class EndsAllAtClose(FakeEngine):
    async def close(self) -> None:
        for attempt in self.world.runs:
            self.end(attempt)


class StopKillsTheNeighbour(FakeEngine):
    async def stop(self, attempt_id: str, grace_s: float) -> None:
        for attempt in list(self.world.runs):
            await super().stop(attempt, grace_s)


class GivesNoGrace(FakeEngine):
    async def stop(self, attempt_id: str, grace_s: float) -> None:
        await super().stop(attempt_id, 0)


class NeverUsesForce(FakeEngine):
    async def stop(self, attempt_id: str, grace_s: float) -> None:
        await super().stop(attempt_id, 1e9)


class DoesNotAsk(FakeEngine):
    async def stop(self, attempt_id: str, grace_s: float) -> None:
        await super().stop(attempt_id, grace_s)
        run = self.world.runs.get(attempt_id)
        if run is not None and run.cut_code is not None:
            run.cut_code = TERMINATED


class LeavesChildren(FakeEngine):
    def processes(self, attempt_id: str) -> int:
        run = self.world.runs.get(attempt_id)
        return max(super().processes(attempt_id), int(run is not None and run.behaviour.leaves_child))


class DoesNotKnowTheUnknown(FakeEngine):
    async def stop(self, attempt_id: str, grace_s: float) -> None:
        if attempt_id not in self.world.runs:
            raise EngineFailure("unknown")
        await super().stop(attempt_id, grace_s)


class GoesBack(FakeEngine):
    async def statuses(self) -> Sequence[Status]:
        found = await super().statuses()
        self.polls = getattr(self, "polls", 0) + 1
        return [replace(status, phase=Phase.STARTING) if self.polls % 7 == 0 else status for status in found]


class TellsOneWatcher(FakeEngine):
    def _tell(self, status: Status) -> None:
        for queue in self._watchers[:1]:
            queue.append(status)
        self._changed.set()


class ForgetsLogs(FakeEngine):
    async def forget(self, attempt_id: str) -> None:
        await super().forget(attempt_id)
        self.world.logs.pop(attempt_id, None)


class NeverForgets(FakeEngine):
    async def forget(self, attempt_id: str) -> None:
        return None


class ForgetsWhatRuns(FakeEngine):
    async def forget(self, attempt_id: str) -> None:
        if attempt_id in self.world.runs:
            self.world.runs[attempt_id].forgotten = True


class TailsOneTooMany(FakeEngine):
    def logs(self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False) -> Any:
        return super().logs(attempt_id, offset=offset, tail=None if tail is None else tail + 1, follow=follow)


class IgnoresOffsets(FakeEngine):
    def logs(self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False) -> Any:
        return super().logs(attempt_id, tail=tail, follow=follow)


class FollowsForEver(FakeEngine):
    async def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        async for line in super().logs(attempt_id, offset=offset, tail=tail, follow=follow):
            yield line
        while follow:
            await self._clock.sleep(1)


class GivesOnePortToAll(FakeEngine):
    async def start(self, request: StartRequest) -> None:
        self.world.next_port = 20_000
        await super().start(request)


class LosesSecrets(FakeEngine):
    async def start(self, request: StartRequest) -> None:
        await super().start(replace(request, secrets=()))


class LetsUsersBeOthers(FakeEngine):
    async def start(self, request: StartRequest) -> None:
        await super().start(replace(request, owner=dict(request.variables).get("COMMONAGE_USER", request.owner)))


class DoesNotSeeOom(FakeEngine):
    async def statuses(self) -> Sequence[Status]:
        return [replace(status, oom=False) for status in await super().statuses()]


class MeasuresTheDead(FakeEngine):
    async def measure(self) -> Sequence[Measurement]:
        return [run.measurement(self._clock.now()) for run in self.world.runs.values()]


class SwallowsBrokenEnvironments(FakeEngine):
    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        try:
            await super().prepare(environment, node, on_progress)
        except EngineFailure:
            return


class GivesNoReason(FakeEngine):
    async def statuses(self) -> Sequence[Status]:
        return [replace(status, reason=None) for status in await super().statuses()]


class LosesCodesOfExecs(FakeEngine):
    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> Any:
        made = await super().exec(attempt_id, command, terminal)
        assert isinstance(made, FakeExec)
        made.code = made.code and 1
        return made


class MixesStreamsOfExecs(FakeEngine):
    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> Any:
        made = await super().exec(attempt_id, command, terminal)
        assert isinstance(made, FakeExec)
        made._said = [(OUT, data) for _, data in made._said]
        return made


class KeepsNothingOfVariablesForExecs(FakeEngine):
    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> Any:
        run = self.world.runs[attempt_id]
        request = run.request
        run.request = replace(request, variables=())
        try:
            return await super().exec(attempt_id, command, terminal)
        finally:
            run.request = request


class Deaf(FakeExec):
    async def resize(self, columns: int, rows: int) -> None:
        return None


class NeverResizes(FakeEngine):
    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> Any:
        made = await super().exec(attempt_id, command, terminal)
        made.__class__ = Deaf
        return made


class Lasting(FakeExec):
    async def close(self) -> None:
        return None


class ExecsOutliveTheirConnection(FakeEngine):
    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> Any:
        made = await super().exec(attempt_id, command, terminal)
        made.__class__ = Lasting
        return made


class ExecsOutliveTheAttempt(FakeEngine):
    def _end_execs(self, attempt_id: str) -> None:
        return None


class RunsBesideTheDead(FakeEngine):
    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> Any:
        return FakeExec(Aside(), terminal, {})


class HasNoNodes(FakeEngine):
    async def nodes(self) -> Sequence[NodeReport]:
        return []


class HasTwoLoopsOfOneName(FakeEngine):
    def loops(self) -> Sequence[Iterations]:
        return [Iterations("fake: clean up", time.time)] * 2


BROKEN = {
    StartsTwice: "test_start_is_idempotent",
    StartsAgainWhatEnded: "test_repeated_start_after_restart_starts_nothing",
    StartsAgainWhatIsForgotten: "test_start_of_forgotten_attempt_starts_nothing",
    RunsWhatWasStopped: "test_attempt_stopped_before_start_never_runs",
    ForgetsAtRestart: "test_restart_finds_running_attempts",
    LosesExitCodesAtRestart: "test_restart_finds_ended_attempts",
    LosesExitCodes: "test_exit_codes_are_the_programs_own",
    EndsAllAtClose: "test_restart_finds_running_attempts",
    StopKillsTheNeighbour: "test_stop_leaves_other_attempts_alone",
    GivesNoGrace: "test_program_that_ignores_sigterm_is_killed_after_the_grace_period",
    NeverUsesForce: "test_program_that_ignores_sigterm_is_killed_after_the_grace_period",
    DoesNotAsk: "test_program_may_end_itself_within_the_grace_period",
    LeavesChildren: "test_detached_children_end_with_their_program",
    DoesNotKnowTheUnknown: "test_unknown_attempts_are_no_error",
    GoesBack: "test_phases_never_go_backwards",
    TellsOneWatcher: "test_all_watchers_get_statuses",
    ForgetsLogs: "test_forgotten_attempt_has_no_status_but_keeps_its_log",
    NeverForgets: "test_forgotten_attempt_has_no_status_but_keeps_its_log",
    ForgetsWhatRuns: "test_running_attempt_cannot_be_forgotten",
    TailsOneTooMany: "test_logs_are_read_whole_from_an_offset_and_from_the_end",
    IgnoresOffsets: "test_logs_are_read_whole_from_an_offset_and_from_the_end",
    FollowsForEver: "test_following_a_log_ends_with_the_attempt",
    GivesOnePortToAll: "test_ports_are_assigned_and_reported",
    LosesSecrets: "test_variables_and_secrets_arrive",
    LetsUsersBeOthers: "test_variables_and_secrets_arrive",
    DoesNotSeeOom: "test_oom_is_distinguished_from_failure",
    MeasuresTheDead: "test_running_attempts_are_measured",
    SwallowsBrokenEnvironments: "test_unpreparable_environment_has_a_reason",
    GivesNoReason: "test_attempt_in_broken_environment_fails_with_the_reason",
    LosesCodesOfExecs: "test_exec_command_has_its_own_exit_code",
    MixesStreamsOfExecs: "test_exec_pipes_are_complete_and_separate",
    KeepsNothingOfVariablesForExecs: "test_exec_command_has_the_attempts_context",
    NeverResizes: "test_terminal_has_its_size_and_is_resized",
    ExecsOutliveTheirConnection: "test_end_of_connection_ends_the_command",
    ExecsOutliveTheAttempt: "test_end_of_attempt_ends_the_command",
    RunsBesideTheDead: "test_exec_in_unknown_attempt_is_refused",
    HasNoNodes: "test_nodes_report_their_resources",
    HasTwoLoopsOfOneName: "test_loops_have_unique_names_and_iterate",
}


def _is_found_out(make: type[FakeEngine], name: str) -> bool:
    """True if this test of the contract fails on such an engine; in a loop of its own, for it may leave tasks."""
    try:
        asyncio.run(getattr(TestFakeEngine(), name)(FakeRig(make)))
    except (AssertionError, CommonageError, LookupError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_the_contract_bites(make: type[FakeEngine]) -> None:
    assert not _is_found_out(FakeEngine, BROKEN[make])
    assert _is_found_out(make, BROKEN[make])
