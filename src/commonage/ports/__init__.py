"""Protocols that the core owns: what control needs of the world. One small file each; adapters live in their rooms."""
