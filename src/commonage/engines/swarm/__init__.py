"""The engine that runs workloads as services of a Docker Swarm, each on the machine that the planner chose.

`engine.SwarmEngine` is the door; bootstrap makes one. `doctor.examine_swarm` says what a Swarm can do.
"""
