"""Why something waits, in words and numbers: made by the planner, shown by API, CLI, portal and spawner alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """A workload that holds what another waits for. `ends_at` only where its time limit tells.

    `memory_mib` is the VRAM it holds on the device it is listed under, for drawing; 0 where it is listed under none.
    """

    workload_id: str
    name: str
    owner: str
    kind: str
    node: str
    holds: str
    ends_at: float | None = None
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why does it wait, and until when?".

    `summary` is the whole answer in one or two sentences. `position` counts from 1 in the queue, None when it does not
    stand in it. `lacks` names what is missing with numbers, one sentence for each kind of thing. `fits_now` is a
    smaller request that would start now, in words, with `fits_now_gpus` as text for `--gpus`. `expected_start_at` is
    unix seconds, with `basis` saying what it rests on; None where nothing tells.
    """

    workload_id: str | None
    summary: str
    startable_now: bool = False
    position: int | None = None
    queue_length: int = 0
    lacks: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    fits_now: str | None = None
    fits_now_gpus: str | None = None
    expected_start_at: float | None = None
    basis: str = ""
