"""Protocols that the core owns: what control needs of the world. One small file each; adapters live in their rooms.

A method whose body is not `...` is optional: an adapter with nothing to do there inherits the port and leaves it out.
"""
