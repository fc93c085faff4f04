"""Which running workloads make room for a more important one."""
