"""Shared by engines that use a Docker daemon: the connection, its errors as ours, images, and relays.

Imported by the Docker and the Swarm engine; imports neither.
"""
