"""Engine that runs workloads as services of a Docker Swarm, each on the node that the planner chose.

The entry point is `engine.SwarmEngine`; bootstrap creates one. `doctor.examine_swarm` reports a Swarm's features.
"""
