"""Engine that runs workloads as services of a Docker Swarm, each on the node that the scheduler chose.

engine.py            SwarmEngine, which bootstrap creates
launcher.py          creates the service of an attempt
translate.py         start request to service description
container_client.py  inspect, stop and remove the service; statuses.py interprets its task
watcher.py           polls tasks, nodes and control folders
nodes/               nodes of the Swarm; detection of partitions, fencing of lost nodes
"""
