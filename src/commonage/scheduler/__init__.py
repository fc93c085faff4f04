"""Pure functions from a snapshot of nodes and queue to a plan (what starts next, and where) and to an explanation.

The schedule loop in `control` makes the snapshot and commits the plan; nothing here reads a clock or keeps state.
"""
