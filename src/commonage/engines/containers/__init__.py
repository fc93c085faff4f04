"""Shared by engines with containers. Imported by engines; imports none of them.

engine.py            base class: start, stop and recovery of attempts after a restart
container_client.py  the operations on one container that an engine implements
lifecycle.py         start with retries; stop by SIGTERM, then SIGKILL
status_reader.py     the status of an attempt, from its run folder, its control folder and its container
start_limiter.py     how many sessions start at a time on a node
program/             arguments and variables of a container: GPU shares become variables here
files/               folders that a container mounts, the entry script, volumes
exec/                commands in running containers
daemon/              the Docker daemon: connection, errors, images, networks
"""
