"""Run time estimates from past durations."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commonage.scheduler.model.groups import Groups
from commonage.scheduler.queue.durations import Durations

kinds = st.sampled_from(["job", "session"])
names = st.sampled_from(["a", "b", "c"])
workloads = st.tuples(kinds, names, names)
seconds = st.floats(0, 1e5, allow_nan=False) | st.integers(0, 20).map(float)


@given(
    past=st.lists(st.tuples(workloads, seconds), max_size=60),
    running=st.lists(st.tuples(workloads, seconds), max_size=20),
    part=st.sampled_from([0.25, 0.5, 0.9]),
)
def test_estimates_many_workloads_as_each_alone(
    past: list[tuple[tuple[str, str, str], float]], running: list[tuple[tuple[str, str, str], float]], part: float
) -> None:
    durations = Durations()
    for group, ran_s in past:
        durations.ended(*group, ran_s)
    groups = Groups()
    group_of = np.array([groups.number(*group) for group, _ in running], np.int64)
    ran = np.array([ran_s for _, ran_s in running], np.float64)

    found = durations.remaining_s(groups, group_of, ran, part)

    alone = [durations.remaining(group, ran_s, part) for group, ran_s in running]
    assert found.tolist() == [np.inf if one is None else one.seconds for one in alone]
