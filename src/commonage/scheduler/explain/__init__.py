"""Why a workload waits, and when it will start."""
