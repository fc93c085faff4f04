"""Stands in for Visdom, whose package gets its scripts from the internet."""
