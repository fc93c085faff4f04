"""Nodes and their devices: reports, health, drain, removal, node pools."""
