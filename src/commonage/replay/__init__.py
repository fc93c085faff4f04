"""The planner on a fake clock: recorded workloads, played through the same core. Called by `commonage replay`.

Nothing here runs or changes anything real.
"""
