"""Nodes of a Swarm: state, reports, partition detection, fencing, membership.

A node is lost when the Swarm marks it as down. `partition_detector.py` decides when its attempts certainly run no more.
`fencing.py` ends them by the node's agent before they start elsewhere.
"""
