"""Measurements of the disk space of homes."""
