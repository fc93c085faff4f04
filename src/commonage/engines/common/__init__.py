"""What engines share that keep their runs on this disk: run folders, logs, workspaces, the newest sightings.

Imported by engines; knows none of them. Nothing here starts or ends anything.
"""
