"""Nodes of a Swarm: state, partition detection, fencing of lost nodes, membership."""
