"""Protocols that the core owns: what control needs from outside. One small file each; adapters live elsewhere.

A method with a statement after its docstring is optional: an adapter that has nothing to do there inherits it.
"""
