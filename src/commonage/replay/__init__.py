"""Replays recorded workloads through the scheduler on a simulated clock, for `commonage replay`."""
