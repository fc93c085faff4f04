"""Engine that runs workloads as containers of a Docker daemon on the control plane's own node.

engine.py            DockerEngine, which bootstrap creates
launcher.py          creates and starts the container of an attempt
translate.py         start request to container description: limits, isolation, GPUs, mounts
container_client.py  inspect, signal and remove the container; interprets its state
daemon.py            features of the daemon: node report, capabilities, advice for an admin
client.py            calls of the daemon's API, and its events
"""
