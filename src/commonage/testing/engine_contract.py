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
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

import pytest

from commonage.domain.environments import EnvironmentState
from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.reasons.attempts import EnvironmentFailed
from commonage.domain.statuses import Phase, Status
from commonage.testing.behaviour import KILLED, TERMINATED, Behaviour
from commonage.testing.engine_rig import FOREVER, RANK, EngineRig


class EngineContract:
    """The rules. Words in capitals are those of the port's documentation."""

    pytestmark: ClassVar = pytest.mark.anyio

    # --- running ----------------------------------------------------------------------------------------------

    async def test_exit_codes_are_the_programs_own(self, rig: EngineRig) -> None:
        for code in (0, 1, 42, KILLED):
            end = await rig.ended(rig.orders(Behaviour(exit_code=code)))
            assert end.exit_code == code
            assert not end.oom

    async def test_a_command_that_is_not_there_ends_with_127(self, rig: EngineRig) -> None:
        end = await rig.ended(rig.orders(Behaviour(exit_code=127)))
        assert end.exit_code == 127

    async def test_an_end_says_where_and_when(self, rig: EngineRig) -> None:
        order = await rig.started(rig.orders(Behaviour(lasts_s=0.3, prints=("here",))))
        running = await rig.status(order.attempt_id)
        end = await rig.phase(order.attempt_id, Phase.ENDED)
        assert running is not None
        assert running.node == end.node == order.allocation.node
        assert running.started_at is not None
        assert end.started_at is not None
        assert abs(running.started_at - end.started_at) < 0.5
        assert end.started_at <= end.at

    async def test_a_crowd_keeps_its_codes_apart(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        orders = {code: rig.orders(Behaviour(exit_code=code)) for code in range(30)}
        await asyncio.gather(*(engine.start(order) for order in orders.values()))
        for code, order in orders.items():
            assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == code

    async def test_variables_and_secrets_arrive(self, rig: EngineRig) -> None:
        ids = ("COMMONAGE_ATTEMPT_ID", "COMMONAGE_WORKLOAD_ID", "COMMONAGE_USER")
        order = rig.orders(
            Behaviour(shows=("PLAIN", "HIDDEN", *ids)),
            variables=(("PLAIN", "a b$c"), ("COMMONAGE_USER", "somebody else")),
            secrets=(("HIDDEN", "x"),),
        )
        await rig.ended(order)
        assert await rig.lines(order.attempt_id) == [
            "PLAIN=a b$c",
            "HIDDEN=x",
            f"COMMONAGE_ATTEMPT_ID={order.attempt_id}",
            f"COMMONAGE_WORKLOAD_ID={order.workload_id}",
            "COMMONAGE_USER=ada",
        ]

    async def test_ports_are_given_and_told(self, rig: EngineRig) -> None:
        if not (await rig.engine()).capabilities().ports:
            return
        urls = []
        for _ in range(2):
            stop = rig.orders(
                replace(FOREVER, shows=("ADDRESS",)), wants_port=True, variables=(("ADDRESS", "port {port}"),)
            )
            order = await rig.started(stop)
            running = await rig.status(order.attempt_id)
            assert running is not None
            assert running.url is not None
            port = running.url.rpartition(":")[2]

            async def is_shown(attempt: str = order.attempt_id, line: str = f"ADDRESS=port {port}") -> bool:
                return line in await rig.lines(attempt)

            await rig.until(is_shown, "the variable holds the port")
            urls.append(running.url)
        assert urls[0] != urls[1]

    # --- once and only once -----------------------------------------------------------------------------------

    async def test_starting_twice_is_starting_once(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        order = rig.orders(Behaviour(lasts_s=0.3, prints=("here",)))
        await asyncio.gather(*(engine.start(order) for _ in range(5)))
        await engine.start(order)
        await rig.phase(order.attempt_id, Phase.ENDED)
        await engine.start(order)
        await rig.pass_time(0.5)
        assert await rig.lines(order.attempt_id) == ["here"]
        assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == 0

    async def test_starting_again_after_a_restart_starts_nothing(self, rig: EngineRig) -> None:
        running = await rig.started(rig.orders(FOREVER))
        over = rig.orders(Behaviour(prints=("here",), exit_code=3))
        await rig.ended(over)
        engine = await rig.restart()
        for order in (running, over):
            await engine.start(order)
        await rig.pass_time(0.5)
        assert await rig.lines(running.attempt_id) == ["here"]
        assert await rig.lines(over.attempt_id) == ["here"]
        assert (await rig.phase(over.attempt_id, Phase.ENDED)).exit_code == 3
        await rig.phase(running.attempt_id, Phase.RUNNING)

    async def test_starting_again_what_was_forgotten_starts_nothing(self, rig: EngineRig) -> None:
        order = rig.orders(Behaviour(prints=("here",)))
        await rig.ended(order)
        engine = await rig.engine()
        await engine.forget(order.attempt_id)
        await engine.start(order)
        await rig.pass_time(0.5)
        assert await rig.lines(order.attempt_id) == ["here"]

    async def test_what_was_stopped_before_its_start_never_runs(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        order = rig.orders(FOREVER)
        await engine.stop(order.attempt_id, 1)
        end = await rig.ended(order)
        assert end.exit_code != 0
        await rig.pass_time(0.3)
        assert await rig.lines(order.attempt_id) == []
        assert await rig.processes(order.attempt_id) == 0

    # --- stopping ---------------------------------------------------------------------------------------------

    async def test_a_stop_asks_and_the_program_ends(self, rig: EngineRig) -> None:
        order = await rig.started(rig.orders(FOREVER))
        await (await rig.engine()).stop(order.attempt_id, 60)
        assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == TERMINATED

    async def test_a_program_may_end_in_its_own_way_within_the_grace(self, rig: EngineRig) -> None:
        order = await rig.started(rig.orders(replace(FOREVER, on_term_exit=7)))
        await (await rig.engine()).stop(order.attempt_id, 60)
        assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == 7

    async def test_a_program_that_does_not_care_is_killed_after_the_grace(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        order = await rig.started(rig.orders(replace(FOREVER, ignores_term=True)))
        asked_at = rig.orders.now()
        await engine.stop(order.attempt_id, 1.5)
        end = await rig.phase(order.attempt_id, Phase.ENDED)
        assert (end.exit_code, end.at > asked_at + 1.4) == (KILLED, True), "its grace, but for what clocks differ"
        assert await rig.processes(order.attempt_id) == 0

    async def test_a_second_stop_may_be_more_urgent(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        order = await rig.started(rig.orders(replace(FOREVER, ignores_term=True)))
        await engine.stop(order.attempt_id, 3600)
        await engine.stop(order.attempt_id, 0)
        await engine.stop(order.attempt_id, 3600)
        assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == KILLED
        await engine.stop(order.attempt_id, 0)
        assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == KILLED

    async def test_a_stop_leaves_the_neighbours_alone(self, rig: EngineRig) -> None:
        order, neighbour = [await rig.started(rig.orders(FOREVER)) for _ in range(2)]
        await (await rig.engine()).stop(order.attempt_id, 0)
        await rig.phase(order.attempt_id, Phase.ENDED)
        await rig.pass_time(0.3)
        await rig.phase(neighbour.attempt_id, Phase.RUNNING)
        assert await rig.processes(neighbour.attempt_id) > 0

    async def test_children_that_ran_away_end_with_a_stop(self, rig: EngineRig) -> None:
        order = await rig.started(rig.orders(replace(FOREVER, leaves_child=True)))
        await (await rig.engine()).stop(order.attempt_id, 0.5)
        await rig.phase(order.attempt_id, Phase.ENDED)
        assert await rig.processes(order.attempt_id) == 0

    async def test_children_that_ran_away_end_with_their_program(self, rig: EngineRig) -> None:
        order = rig.orders(Behaviour(lasts_s=0.3, leaves_child=True))
        end = await rig.ended(order)
        assert end.exit_code == 0
        assert await rig.processes(order.attempt_id) == 0

    async def test_unknown_attempts_are_no_error(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        unknown = rig.orders(FOREVER).attempt_id
        await engine.stop(unknown, 1)
        await engine.forget(unknown)
        await engine.stop("../..", 1)
        await engine.forget("../..")
        assert await engine.statuses() == []
        with pytest.raises(NotFound):
            await rig.log(rig.orders(FOREVER).attempt_id)

    # --- statuses --------------------------------------------------------------------------------------------

    async def test_statuses_never_go_back(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        watched: list[Status] = []

        async def watch() -> None:
            async with aclosing(engine.watch()) as statuses:  # type: ignore[type-var]  # a generator in practice
                async for status in statuses:
                    watched.append(status)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        orders = [rig.orders(Behaviour(lasts_s=0.1 * number)) for number in range(5)]
        for order in orders:
            await engine.start(order)
        polled: list[Status] = []

        async def is_over() -> bool:
            now = await engine.statuses()
            polled.extend(now)
            over = [{one.attempt_id for one in told if one.phase is Phase.ENDED} for told in (now, watched)]
            return all(len(each) == len(orders) for each in over)

        await rig.until(is_over, "all ended, and the watcher was told so")
        await rig.pass_time(0.2)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        for order in orders:
            for told in (polled, watched):
                ranks = [RANK[status.phase] for status in told if status.attempt_id == order.attempt_id]
                assert ranks == sorted(ranks)
                assert ranks[-1] == RANK[Phase.ENDED]

    async def test_all_watchers_are_told(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        order = rig.orders(Behaviour(exit_code=5))

        async def end() -> Status:
            async for status in engine.watch():
                if status.attempt_id == order.attempt_id and status.phase is Phase.ENDED:
                    return status
            raise AssertionError("watch ended by itself")

        watching = [asyncio.create_task(end()) for _ in range(2)]
        await asyncio.sleep(0)
        await engine.start(order)

        async def are_told() -> bool:
            return all(task.done() for task in watching)

        await rig.until(are_told, "both watchers were told")
        assert [task.result().exit_code for task in watching] == [5, 5]

    async def test_what_is_forgotten_is_not_sighted_but_its_log_stays(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        order = rig.orders(Behaviour(prints=("here",)))
        await rig.ended(order)
        await engine.forget(order.attempt_id)
        await engine.forget(order.attempt_id)
        assert await rig.status(order.attempt_id) is None
        assert await rig.lines(order.attempt_id) == ["here"]
        await rig.restart()
        assert await rig.status(order.attempt_id) is None
        assert await rig.lines(order.attempt_id) == ["here"]

    async def test_what_runs_cannot_be_forgotten(self, rig: EngineRig) -> None:
        order = await rig.started(rig.orders(FOREVER))
        await (await rig.engine()).forget(order.attempt_id)
        await rig.phase(order.attempt_id, Phase.RUNNING)

    # --- restarts ---------------------------------------------------------------------------------------------

    async def test_a_restart_finds_what_runs(self, rig: EngineRig) -> None:
        order = await rig.started(rig.orders(replace(FOREVER, on_term_exit=9), wants_port=True))
        before = await rig.phase(order.attempt_id, Phase.RUNNING)
        await rig.restart()
        after = await rig.phase(order.attempt_id, Phase.RUNNING)
        assert after.url == before.url
        assert before.started_at is not None
        assert after.started_at is not None
        assert abs(after.started_at - before.started_at) < 0.5
        await (await rig.engine()).stop(order.attempt_id, 60)
        assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == 9

    async def test_a_restart_finds_what_ended(self, rig: EngineRig) -> None:
        order = rig.orders(Behaviour(exit_code=6))
        before = await rig.ended(order)
        await rig.restart()
        after = await rig.phase(order.attempt_id, Phase.ENDED)
        assert after.exit_code == 6
        assert abs(after.at - before.at) < 0.5

    # --- logs -------------------------------------------------------------------------------------------------

    async def test_logs_are_read_whole_from_a_byte_and_from_the_end(self, rig: EngineRig) -> None:
        texts = ["one", "two words", "", "schön", "last"]
        order = rig.orders(Behaviour(prints=tuple(texts)))
        await rig.ended(order)
        whole = await rig.log(order.attempt_id)
        assert [line.text for line in whole] == texts
        for index, line in enumerate(whole):
            rest = await rig.log(order.attempt_id, offset=line.offset)
            assert rest == whole[index + 1 :]
        for tail in range(7):
            expected = whole[-tail:] if tail else []
            assert await rig.log(order.attempt_id, tail=tail) == expected
        assert await rig.log(order.attempt_id, offset=10**9) == []

    async def test_following_a_log_ends_with_the_attempt(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        order = rig.orders(Behaviour(lasts_s=0.5, prints=("one", "two")))
        await engine.start(order)

        async def follow() -> list[str]:
            return [line.text async for line in engine.logs(order.attempt_id, follow=True)]

        following = asyncio.create_task(follow())

        async def is_over() -> bool:
            return following.done()

        await rig.until(is_over, "following ended")
        assert following.result() == ["one", "two"]
        assert (await rig.phase(order.attempt_id, Phase.ENDED)).exit_code == 0

    # --- limits and measures ----------------------------------------------------------------------------------

    async def test_too_much_memory_is_told_apart_from_a_failure(self, rig: EngineRig) -> None:
        if not (await rig.engine()).capabilities().limits_memory:
            return
        end = await rig.ended(rig.orders(Behaviour(oom=True, exit_code=KILLED), memory_mib=32))
        assert end.oom
        assert end.exit_code not in (0, None)

    async def test_what_runs_is_measured(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        running = [await rig.started(rig.orders(FOREVER)) for _ in range(2)]
        await rig.ended(rig.orders(Behaviour()))
        measured = {found.attempt_id: found for found in await engine.measure()}
        assert set(measured) == {order.attempt_id for order in running}
        for found in measured.values():
            assert found.cpu_s >= 0
            assert 0 <= found.memory_mib <= 256
            assert found.pids
            owners = await engine.owners(found.pids)
            assert {owner.attempt_id for owner in owners} == {found.attempt_id}
        first, second = measured.values()
        assert not set(first.pids) & set(second.pids)
        assert await engine.owners([2**31 - 1]) == [], "what does not run is left out"

    # --- environments, nodes, capabilities --------------------------------------------------------------------

    async def test_an_environment_is_prepared_and_stands(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        await engine.prepare(rig.orders.environment)
        await engine.prepare(rig.orders.environment, (await engine.nodes())[0].name)
        states = {status.name: status for status in await engine.environments()}
        status = states[rig.orders.environment.name]
        assert status.state is EnvironmentState.READY
        assert status.site == engine.site

    async def test_an_environment_that_cannot_be_prepared_says_why(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        with pytest.raises(EngineFailure, match=rig.broken_environment.name):
            await engine.prepare(rig.broken_environment)
        states = {status.name: status for status in await engine.environments()}
        status = states[rig.broken_environment.name]
        assert status.state is EnvironmentState.FAILED
        assert status.reason

    async def test_an_attempt_in_a_broken_environment_fails_with_the_reason(self, rig: EngineRig) -> None:
        order = rig.orders(Behaviour(prints=("here",)), environment=rig.broken_environment)
        try:
            end = await rig.ended(order)
        except EngineFailure as failure:  # known at once
            assert rig.broken_environment.name in failure.message
            return
        assert end.exit_code not in (0, None)
        assert isinstance(end.reason, EnvironmentFailed)
        assert end.reason.environment == rig.broken_environment.name
        assert await rig.lines(order.attempt_id) == []

    async def test_nodes_say_what_they_have(self, rig: EngineRig) -> None:
        nodes = await (await rig.engine()).nodes()
        names = [node.name for node in nodes]
        assert rig.orders.node in names
        assert len(set(names)) == len(names)
        assert all(node.cpus_milli > 0 and node.memory_mib > 0 for node in nodes)

    async def test_each_of_its_loops_has_a_name_of_its_own_and_turns(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        loops = [turns.health() for turns in engine.loops()]
        assert len({one.name for one in loops}) == len(loops)
        assert all(one.name.startswith(f"{engine.capabilities().name}: ") for one in loops)
        assert not [one.name for one in loops if one.stuck or one.breaks]

    async def test_it_says_what_it_can(self, rig: EngineRig) -> None:
        engine = await rig.engine()
        assert engine.site
        assert engine.capabilities().name
