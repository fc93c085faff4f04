"""The control plane's use cases and loops. Everything is async and reaches the outside only through ports.

| question | module |
|---|---|
| how everything is assembled, started and stopped | `control.py` |
| where a submission becomes a spec | `workloads/submission.py` |
| where a workload is admitted or refused | `workloads/workloads.py` (`submit`), `workloads/admission.py` |
| where a workload waits, for a quota for example | in `state/live_state.py` (`snapshot`); decided by `scheduler` |
| where allocations are made and evictions requested | `loops/schedule.py` |
| where attempts are started and stopped | `loops/reconcile.py`; what they start with: `workloads/start_requests.py` |
| begin times, time limits, dependencies | `loops/timers.py` |
| where a lost node is handled | `nodes/nodes.py`; its attempts in `loops/reconcile.py`, its sessions in |
| | `loops/session_restarts.py` |
| where a lost node is fenced | not here: `engines/swarm/nodes/fencing.py`, and on the node `agent/fencing.py` |
| drain and removal of nodes; node pools | `nodes/drains.py`, `nodes/node_pools.py` |
| gangs: all members or none | `loops/gangs.py` |
| the one writer of workloads, and what it keeps in memory | `state/writer.py`, `state/live_state.py` |
| measurements, GPU processes, VRAM above a share | `loops/sample.py`, `usage/attribution.py`, `usage/watchdog.py` |
| usage reports and suggestions | `usage/usage_reports.py`, `workloads/submission.py` (`Advice`) |
| environments and images | `catalogue/catalogue.py`, `catalogue/images.py`, `catalogue/prepulls.py` |
| tenants, their members and quota | `tenants.py` |
| reservations | `reservations.py`, `windows.py` |
| what API and portal read | `queries/` |
| limits on requests and connections | `request_limits.py` |
"""
