"""Shared by engines with containers. Imported by engines; imports none of them.

engine.py           base class: start, stop and recovery of attempts after a restart
attempt_backend.py  an attempt, and the operations on its container that an engine implements
lifecycle.py        start with retries, a few sessions at a time; stop by SIGTERM, then SIGKILL
status_reader.py    the status of an attempt, from its run folder, its control folder and its container
program.py          arguments and variables of a container; merges in those of its GPU shares (gpu.environment)
execs.py            commands in running containers, by docker_api.py
usage.py            processes, CPU time and memory of containers
files/              folders that a container mounts, the entry script, volumes
daemon/             the Docker daemon: connection, errors, images, networks
"""
