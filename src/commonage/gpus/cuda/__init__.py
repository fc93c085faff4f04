"""CUDA's driver library by ctypes, no framework: for trying what a share holds and for measuring.

`probe` is a program; it runs in a process of its own, under the share that is tried. The server itself never makes a
CUDA context.
"""
