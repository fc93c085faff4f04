"""Protocols that the core owns: what control needs of the world. One small file each; adapters live in their rooms.

A method with a body is optional: an adapter that has nothing to do there inherits the port and leaves the method out.
"""
