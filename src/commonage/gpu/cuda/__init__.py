"""CUDA's driver library by ctypes, without a framework: for testing the limit of a share, and for measuring.

`probe` is a program that runs in its own process, under the share to test. The server itself never creates a CUDA
context.
"""
