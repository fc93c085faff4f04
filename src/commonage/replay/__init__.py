"""The planner on a fake clock: recorded histories and published experiments, played through the same core.

Called by `commonage replay` and `commonage bench`. Nothing here runs or changes anything real.
"""
