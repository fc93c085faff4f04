"""Scheduling: pure functions from a snapshot of nodes and queue to a plan and to explanations.

| question | module |
|---|---|
| input of the planner | `snapshot.py` |
| one scheduling pass | `plan.py` |
| order of the queue, fair share | `queue/queue.py`, `queue/fair_share.py` |
| quotas, borrowing and lending | `queue/quota.py` |
| routing to a site | `queue/sites.py` |
| filters: which node fits | `fit/filters.py`; for all requests at once `fit/fit_table.py` |
| scoring: which node is best | `policies/` |
| backfill | `backfill/backfill.py` |
| reservations | `backfill/reservations.py` |
| preemption and reclaim | `preemption/preemption.py` |
| wait reasons | `explain/shortfalls.py` |
| expected start | `explain/expected_start.py` |
| size of node pools | `autoscaling.py` |

Imports go one way: model, queue, fit, backfill | preemption | policies, snapshot, plan, explain. The schedule loop in
`control` makes the snapshot and commits the plan. Nothing here reads a clock or keeps state.
"""
