"""Queries of API and portal. Read-only."""
