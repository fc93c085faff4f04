"""Lists the requests ahead of a queued one by reason: priority, fair share, age. Called by explain.py."""

from __future__ import annotations

import numpy as np

from commonage.domain.explanations import JobsAhead, Precedence
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.scheduler.queue.queue import QueueOrder
from commonage.scheduler.snapshot import Snapshot

MAX_NAMED = 3
_REASONS = (Precedence.PRIORITY, Precedence.FAIR_SHARE, Precedence.OLDER, Precedence.OWN)


def jobs_ahead(snapshot: Snapshot, order: QueueOrder, queued: QueuedRequest) -> tuple[JobsAhead, ...]:
    """The requests ahead, grouped by reason; for each reason the number, and the nearest."""
    place = order.place(snapshot.queue.slot(queued.workload_id))
    slots = order.slots[:place]
    if not len(slots):
        return ()
    priority, submitted, keys = snapshot.ranks(order.now)
    mine = order.slots[place]
    by_age = snapshot.rules.age_credit * (submitted[mine] - submitted[slots])
    by_share = keys[mine] - keys[slots] - by_age
    reasons = np.where(by_share > by_age, 1, 2)
    reasons[priority[slots] > priority[mine]] = 0
    reasons[order.accounts[:place] == order.accounts[place]] = 3
    found = []
    for number, precedence in enumerate(_REASONS):
        some = slots[reasons == number]
        if len(some):
            nearest = [snapshot.queue.queued_requests[slot] for slot in some[: -MAX_NAMED - 1 : -1].tolist()]
            named = tuple((one.kind, one.owner) for one in nearest if one is not None)
            found.append(JobsAhead(precedence, len(some), named))
    return tuple(found)
