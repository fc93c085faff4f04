"""Backfill, promised starts, reservations, and the future availability of nodes."""
