"""Preemption by priority, and reclaim of borrowed quota: which running workloads to evict."""
