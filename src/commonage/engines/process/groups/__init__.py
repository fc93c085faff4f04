"""Processes of an attempt: control groups, or a mark in the environment; owners of processes."""
