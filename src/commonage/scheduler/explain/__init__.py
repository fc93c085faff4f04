"""Wait reasons, jobs ahead, smaller requests that would start, and the expected start of queued workloads."""
