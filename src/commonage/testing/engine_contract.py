"""Contract tests for every engine: inherit `EngineContract`, supply the fixture `rig`, and all its tests run.

    class TestMine(EngineContract):
        @pytest.fixture
        async def rig(self, tmp_path):
            async with my_rig(tmp_path) as rig:
                yield rig

Each test takes only the rig, so that it can also be called directly. The tests of this suite do so, on engines that
are broken on purpose.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import ClassVar

import pytest

from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.images import EnvironmentState
from commonage.domain.node_usage import NodeUsage
from commonage.domain.reasons.attempts import EnvironmentFailed
from commonage.domain.statuses import Measurement, Phase, Status
from commonage.testing.behaviour import KILLED, TERMINATED, Behaviour
from commonage.testing.engine_rig import FOREVER, RANK, EngineRig


class EngineContract:
    """The rules. Words in capitals are those of the port's documentation."""

    pytestmark: ClassVar = pytest.mark.anyio

    # --- running ----------------------------------------------------------------------------------------------

    async def test_missing_command_ends_with_127(self, rig: EngineRig) -> None:
        end = await rig.ended(rig.start_request(Behaviour(exit_code=127)))
        assert end.exit_code == 127

    async def test_end_has_node_and_times(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(Behaviour(lasts_s=0.3, prints=("here",))))
        running = await rig.status(request.attempt_id)
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert running is not None
        assert running.node == end.node == request.allocation.node
        assert running.started_at is not None
        assert end.started_at is not None
        assert abs(running.started_at - end.started_at) < 5
        assert end.started_at <= end.at

    async def test_exit_codes_are_the_programs_own(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        requests = {code: rig.start_request(Behaviour(exit_code=code)) for code in (*range(30), 42, KILLED)}
        await asyncio.gather(*(engine.start(request) for request in requests.values()))
        for code, request in requests.items():
            end = await rig.phase(request.attempt_id, Phase.ENDED)
            assert (end.exit_code, end.oom) == (code, False)

    async def test_variables_and_secrets_arrive(self, rig: EngineRig) -> None:
        ids = ("COMMONAGE_ATTEMPT_ID", "COMMONAGE_WORKLOAD_ID", "COMMONAGE_USER")
        request = rig.start_request(
            Behaviour(shows=("PLAIN", "HIDDEN", *ids)),
            variables=(("PLAIN", "a b$c"), ("COMMONAGE_USER", "somebody else")),
            secrets=(("HIDDEN", "x"),),
        )
        await rig.ended(request)
        assert await rig.lines(request.attempt_id) == [
            "PLAIN=a b$c",
            "HIDDEN=x",
            f"COMMONAGE_ATTEMPT_ID={request.attempt_id}",
            f"COMMONAGE_WORKLOAD_ID={request.workload_id}",
            "COMMONAGE_USER=ada",
        ]

    async def test_ports_are_assigned_and_reported(self, rig: EngineRig) -> None:
        if not (await rig.engine()).capabilities().ports:
            return

        async def url_of_one() -> str:
            shows = replace(FOREVER, shows=("ADDRESS",))
            request = rig.start_request(shows, wants_port=True, variables=(("ADDRESS", "port {port}"),))
            await rig.started(request)
            running = await rig.status(request.attempt_id)
            assert running is not None
            assert running.url is not None
            line = f"ADDRESS=port {running.url.rpartition(':')[2]}"

            async def is_shown() -> bool:
                return line in await rig.lines(request.attempt_id)

            await rig.until(is_shown, "the variable holds the port")
            return running.url

        first, second = await asyncio.gather(url_of_one(), url_of_one())
        assert first != second

    # --- once and only once -----------------------------------------------------------------------------------

    async def test_start_is_idempotent(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = rig.start_request(Behaviour(lasts_s=0.3, prints=("here",)))
        await asyncio.gather(*(engine.start(request) for _ in range(5)))
        await engine.start(request)
        await rig.phase(request.attempt_id, Phase.ENDED)
        await engine.start(request)
        await rig.pass_time(0.5)
        assert await rig.lines(request.attempt_id) == ["here"]
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 0

    async def test_repeated_start_after_restart_starts_nothing(self, rig: EngineRig) -> None:
        await rig.engine()
        running, over = rig.start_request(FOREVER), rig.start_request(Behaviour(prints=("here",), exit_code=3))
        await asyncio.gather(rig.started(running), rig.ended(over))
        engine = await rig.restart()
        for request in (running, over):
            await engine.start(request)
        await rig.pass_time(0.5)
        assert await rig.lines(running.attempt_id) == ["here"]
        assert await rig.lines(over.attempt_id) == ["here"]
        assert (await rig.phase(over.attempt_id, Phase.ENDED)).exit_code == 3
        await rig.phase(running.attempt_id, Phase.RUNNING)

    async def test_start_of_forgotten_attempt_starts_nothing(self, rig: EngineRig) -> None:
        request = rig.start_request(Behaviour(prints=("here",)))
        await rig.ended(request)
        engine = await rig.engine()
        await engine.forget(request.attempt_id)
        await engine.start(request)
        await rig.pass_time(0.5)
        assert await rig.lines(request.attempt_id) == ["here"]

    async def test_attempt_stopped_before_start_never_runs(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = rig.start_request(FOREVER)
        await engine.stop(request.attempt_id, 1)
        end = await rig.ended(request)
        assert end.exit_code != 0
        await rig.pass_time(0.3)
        assert await rig.lines(request.attempt_id) == []
        assert await rig.processes(request.attempt_id) == 0

    async def test_attempt_stopped_before_start_never_runs_once_forgotten(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = rig.start_request(FOREVER)
        await engine.stop(request.attempt_id, 1)
        await engine.forget(request.attempt_id)
        await engine.start(request)
        await rig.pass_time(0.3)
        assert Phase.RUNNING not in {one.phase for one in await engine.statuses()}
        assert await rig.processes(request.attempt_id) == 0

    # --- stopping ---------------------------------------------------------------------------------------------

    async def test_stop_sends_sigterm(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        await (await rig.engine()).stop(request.attempt_id, 60)
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == TERMINATED

    async def test_program_may_end_itself_within_the_grace_period(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(replace(FOREVER, on_term_exit=7)))
        await (await rig.engine()).stop(request.attempt_id, 60)
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 7

    async def test_program_that_ignores_sigterm_is_killed_after_the_grace_period(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = await rig.started(rig.start_request(replace(FOREVER, ignores_term=True)))
        asked_at = rig.start_request.now()
        await engine.stop(request.attempt_id, 1.5)
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert (end.exit_code, end.at > asked_at + 1.4) == (KILLED, True), "its grace, but for what clocks differ"
        assert await rig.processes(request.attempt_id) == 0

    async def test_second_stop_may_shorten_the_grace_period(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = await rig.started(rig.start_request(replace(FOREVER, ignores_term=True)))
        await engine.stop(request.attempt_id, 3600)
        await engine.stop(request.attempt_id, 0)
        await engine.stop(request.attempt_id, 3600)
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == KILLED
        await engine.stop(request.attempt_id, 0)
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == KILLED

    async def test_stop_leaves_other_attempts_alone(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request, neighbour = await asyncio.gather(*(rig.started(rig.start_request(FOREVER)) for _ in range(2)))
        await engine.stop(request.attempt_id, 0)
        await rig.phase(request.attempt_id, Phase.ENDED)
        await rig.pass_time(0.3)
        await rig.phase(neighbour.attempt_id, Phase.RUNNING)
        assert await rig.processes(neighbour.attempt_id) > 0

    async def test_detached_children_end_with_a_stop(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(replace(FOREVER, leaves_child=True)))
        await (await rig.engine()).stop(request.attempt_id, 0.5)
        await rig.phase(request.attempt_id, Phase.ENDED)
        assert await rig.processes(request.attempt_id) == 0

    async def test_detached_children_end_with_their_program(self, rig: EngineRig) -> None:
        request = rig.start_request(Behaviour(lasts_s=0.3, leaves_child=True))
        end = await rig.ended(request)
        assert end.exit_code == 0
        assert await rig.processes(request.attempt_id) == 0

    async def test_unknown_attempts_are_no_error(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        unknown = rig.start_request(FOREVER).attempt_id
        await engine.stop(unknown, 1)
        await engine.forget(unknown)
        await engine.stop("../..", 1)
        await engine.forget("../..")
        assert await engine.statuses() == []
        with pytest.raises(NotFound):
            await rig.log(rig.start_request(FOREVER).attempt_id)

    # --- statuses --------------------------------------------------------------------------------------------

    async def test_phases_never_go_backwards(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        watched: list[Status] = []

        async def watch() -> None:
            async with aclosing(engine.watch()) as statuses:  # type: ignore[type-var]  # a generator in practice
                async for status in statuses:
                    watched.append(status)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        requests = [rig.start_request(Behaviour(lasts_s=0.1 * number)) for number in range(5)]
        for request in requests:
            await engine.start(request)
        polled: list[Status] = []

        async def is_over() -> bool:
            now = await engine.statuses()
            polled.extend(now)
            over = [{one.attempt_id for one in told if one.phase is Phase.ENDED} for told in (now, watched)]
            return all(len(each) == len(requests) for each in over)

        await rig.until(is_over, "all ended, and the watcher was told so")
        await rig.pass_time(0.2)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        for request in requests:
            for told in (polled, watched):
                ranks = [RANK[status.phase] for status in told if status.attempt_id == request.attempt_id]
                assert ranks == sorted(ranks)
                assert ranks[-1] == RANK[Phase.ENDED]

    async def test_all_watchers_get_statuses(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = rig.start_request(Behaviour(exit_code=5))

        async def end() -> Status:
            async for status in engine.watch():
                if status.attempt_id == request.attempt_id and status.phase is Phase.ENDED:
                    return status
            raise AssertionError("watch ended by itself")

        watching = [asyncio.create_task(end()) for _ in range(2)]
        await asyncio.sleep(0)
        await engine.start(request)

        async def are_told() -> bool:
            return all(task.done() for task in watching)

        await rig.until(are_told, "both watchers were told")
        assert [task.result().exit_code for task in watching] == [5, 5]

    async def test_forgotten_attempt_has_no_status_but_keeps_its_log(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = rig.start_request(Behaviour(prints=("here",)))
        await rig.ended(request)
        await engine.forget(request.attempt_id)
        await engine.forget(request.attempt_id)
        assert await rig.status(request.attempt_id) is None
        assert await rig.lines(request.attempt_id) == ["here"]
        await rig.restart()
        assert await rig.status(request.attempt_id) is None
        assert await rig.lines(request.attempt_id) == ["here"]

    async def test_running_attempt_cannot_be_forgotten(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(FOREVER))
        await (await rig.engine()).forget(request.attempt_id)
        await rig.phase(request.attempt_id, Phase.RUNNING)

    # --- restarts ---------------------------------------------------------------------------------------------

    async def test_restart_finds_running_attempts(self, rig: EngineRig) -> None:
        request = await rig.started(rig.start_request(replace(FOREVER, on_term_exit=9), wants_port=True))
        before = await rig.phase(request.attempt_id, Phase.RUNNING)
        await rig.restart()
        after = await rig.phase(request.attempt_id, Phase.RUNNING)
        assert after.url == before.url
        assert before.started_at is not None
        assert after.started_at is not None
        assert abs(after.started_at - before.started_at) < 5
        await (await rig.engine()).stop(request.attempt_id, 60)
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 9

    async def test_restart_finds_ended_attempts(self, rig: EngineRig) -> None:
        request = rig.start_request(Behaviour(exit_code=6))
        before = await rig.ended(request)
        await rig.restart()
        after = await rig.phase(request.attempt_id, Phase.ENDED)
        assert after.exit_code == 6
        assert abs(after.at - before.at) < 0.5

    # --- logs -------------------------------------------------------------------------------------------------

    async def test_logs_are_read_whole_from_an_offset_and_from_the_end(self, rig: EngineRig) -> None:
        texts = ["one", "two words", "", "schön", "last"]
        request = rig.start_request(Behaviour(prints=tuple(texts)))
        await rig.ended(request)
        whole = await rig.log(request.attempt_id)
        assert [line.text for line in whole] == texts
        for index, line in enumerate(whole):
            rest = await rig.log(request.attempt_id, offset=line.offset)
            assert rest == whole[index + 1 :]
        for tail in range(7):
            expected = whole[-tail:] if tail else []
            assert await rig.log(request.attempt_id, tail=tail) == expected
        assert await rig.log(request.attempt_id, offset=10**9) == []

    async def test_following_a_log_ends_with_the_attempt(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        request = rig.start_request(Behaviour(lasts_s=0.5, prints=("one", "two")))
        await engine.start(request)

        async def follow() -> list[str]:
            return [line.text async for line in engine.logs(request.attempt_id, follow=True)]

        following = asyncio.create_task(follow())

        async def is_over() -> bool:
            return following.done()

        await rig.until(is_over, "following ended")
        assert following.result() == ["one", "two"]
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 0

    # --- limits and measures ----------------------------------------------------------------------------------

    async def test_oom_is_distinguished_from_failure(self, rig: EngineRig) -> None:
        if not (await rig.engine()).capabilities().limits_memory:
            return
        end = await rig.ended(rig.start_request(Behaviour(oom=True, exit_code=KILLED), memory_mib=32))
        assert end.oom
        assert end.exit_code not in (0, None)

    async def test_running_attempts_are_measured(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        running = [rig.start_request(FOREVER) for _ in range(2)]
        await asyncio.gather(*(rig.started(one) for one in running), rig.ended(rig.start_request(Behaviour())))
        measured: dict[str, Measurement] = {}

        async def are_measured() -> bool:  # a node may count from time to time only
            measured.update({found.attempt_id: found for found in await engine.measure()})
            return len(measured) >= len(running)

        await rig.until(are_measured, "all are measured")
        assert set(measured) == {request.attempt_id for request in running}
        for found in measured.values():
            assert found.cpu_s >= 0
            assert 0 <= found.memory_mib <= 256
            assert bool(found.pids) is rig.tells_pids
            owners = await engine.owners(found.pids)
            assert {owner.attempt_id for owner in owners} == ({found.attempt_id} if rig.on_this_node else set())
        first, second = measured.values()
        assert not set(first.pids) & set(second.pids)
        assert not await engine.owners([2**31 - 1]), "what does not run is left out"

    # --- environments, nodes, capabilities --------------------------------------------------------------------

    async def test_prepared_environment_is_ready(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        await engine.prepare(rig.start_request.environment)
        await engine.prepare(rig.start_request.environment, (await engine.nodes())[0].name)
        states = {status.name: status for status in await engine.environments()}
        status = states[rig.start_request.environment.name]
        assert status.state is EnvironmentState.READY
        assert status.site == engine.site

    async def test_unpreparable_environment_has_a_reason(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        with pytest.raises(EngineFailure, match=rig.broken_environment.name):
            await engine.prepare(rig.broken_environment)
        states = {status.name: status for status in await engine.environments()}
        status = states[rig.broken_environment.name]
        assert status.state is EnvironmentState.FAILED
        assert status.reason

    async def test_attempt_in_broken_environment_fails_with_the_reason(self, rig: EngineRig) -> None:
        request = rig.start_request(Behaviour(prints=("here",)), environment=rig.broken_environment)
        try:
            end = await rig.ended(request)
        except EngineFailure as failure:  # known at once
            assert rig.broken_environment.name in failure.message
            return
        assert end.exit_code not in (0, None)
        assert isinstance(end.reason, EnvironmentFailed)
        assert end.reason.environment == rig.broken_environment.name
        assert await rig.lines(request.attempt_id) == []

    async def test_nodes_report_their_resources(self, rig: EngineRig) -> None:
        nodes = await (await rig.engine()).nodes()
        names = [node.name for node in nodes]
        assert rig.start_request.node in names
        assert len(set(names)) == len(names)
        assert all(node.cpus_milli > 0 and node.memory_mib > 0 for node in nodes)

    async def test_measured_use_of_nodes_is_plausible(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        await engine.nodes()
        for node in await engine.nodes():
            used = node.usage or NodeUsage()  # an engine may have no meter there
            figures = [value for value in asdict(used).values() if value is not None]
            assert all(math.isfinite(value) and value >= 0 for value in figures)
            assert (used.disk_used_mib or 0) <= (used.disk_total_mib or 0)

    async def test_loops_have_unique_names_and_iterate(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        loops = [turns.health() for turns in engine.loops()]
        assert len({one.name for one in loops}) == len(loops)
        assert all(one.name.startswith(f"{engine.capabilities().name}: ") for one in loops)
        assert not [one.name for one in loops if one.stuck or one.breaks]

    async def test_capabilities_are_complete(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        assert engine.site
        assert engine.capabilities().name
