"""The mix of typical workloads."""

from __future__ import annotations

import pytest

from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.policies.mix import WorkloadMix

HALF = Request(1000, 0, parse_gpus("0.5"))
PAIR = Request(4000, 0, parse_gpus("2"))
NO_GPU = Request(2000, 0)


def test_the_rare_are_left_out_and_the_rest_weigh_as_often_as_they_came() -> None:
    rare = Request(500, 0, parse_gpus("0.1"))
    mix = WorkloadMix.of([HALF] * 60 + [PAIR] * 36 + [rare] * 4)
    assert mix.requests == (HALF, PAIR)
    assert mix.weights == pytest.approx((60 / 96, 36 / 96))


def test_memory_and_labels_make_no_other_kind() -> None:
    asked = [Request(1000, 64, HALF.gpu, (("zone", "a"),)), Request(1000, 1024, HALF.gpu), NO_GPU]
    mix = WorkloadMix.of(asked)
    assert mix.requests == (HALF, NO_GPU)
    assert mix.weights == WorkloadMix.of({HALF: 2.0, NO_GPU: 1.0}).weights
    assert mix.cpus_per_mib == 2000 / 1088


def test_nothing_seen_is_an_empty_mix() -> None:
    assert WorkloadMix.of([]) == WorkloadMix()
