"""The GPUs of this node: real ones through NVML, simulated ones, and the environment of workloads with shares.

`detect.open_devices` is the entry point; bootstrap calls it once. No scheduling decision is made here.
"""
