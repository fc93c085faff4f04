"""Numeric forms of requests, nodes and allocations that the scheduler compares."""
