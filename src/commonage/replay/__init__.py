"""Replays recorded workloads through the planner on a fake clock. Called by `commonage replay`.

Nothing here runs or changes anything real.
"""
