"""Reservations of room in a window of time."""
