"""Replays recorded workloads through the planner on a simulated clock, for `commonage replay`."""
