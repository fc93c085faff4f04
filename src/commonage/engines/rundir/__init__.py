"""Shared by engines that keep their runs on this disk: run folders, logs, workspaces, latest statuses.

Imported by engines; imports none of them. Nothing here starts or ends a process.
"""
