"""The cards of this machine: real ones through NVML, simulated ones, and what a workload is told of its
share.

`detect.open_devices` is the door; bootstrap calls it once. Nothing here decides who gets what.
"""
