"""Scheduling: pure functions from a snapshot of nodes and queue to a plan and to explanations.

Imports go one way: model, queue, fit, backfill | preemption | policies, snapshot, plan, explain. The schedule loop in
`control` makes the snapshot and commits the plan. Nothing here reads a clock or keeps state.
"""
