"""Who starts next, and where: pure functions from a snapshot of fleet and queue to a plan, and to an explanation.

The schedule loop in `control` makes the snapshot and commits the plan; nothing here reads a clock or keeps anything.
"""
