"""Commonage's containers on this node: Docker client, images, mounts, limits, exec."""
