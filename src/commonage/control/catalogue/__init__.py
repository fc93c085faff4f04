"""Environments and images, and how they reach nodes."""
