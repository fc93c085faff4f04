"""Requests and nodes in the numbers that the scheduler compares: shapes, the grid, free room."""
