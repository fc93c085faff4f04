"""Containers that start warm: created ahead, with a Python that has loaded a session's libraries and waits.

containers.py   keeps them, and hands one to a session
description.py  which sessions they fit, and how they are described to the daemon
template.py     the program that waits in each
mounts.py       mounts a session's own folders in a container that runs
"""
