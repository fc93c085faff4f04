"""The loops: schedule, reconcile, timers, samples, and what follows from one event for other workloads."""
