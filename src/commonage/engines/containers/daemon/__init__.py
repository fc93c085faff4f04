"""Shared by the Docker and Swarm engines: connection to a daemon, error translation, images, networks, descriptions.

Imports neither engine. `connection.py` translates the daemon's errors; `descriptions.py` has the parts of a container's
description that both engines use; `info.py` reads what a daemon reports, for agents too.
"""
