"""Folders and files of a container: workspace, job folder, control folder, log, volumes.

`prepare.py` creates all of it before the container. `control_folder.py` and `entry.sh` are the two ends of one
protocol.
"""
