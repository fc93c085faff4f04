"""Enforcement of shares: one module for each isolation level behind one protocol (`level.Level`), best first.

`devices.IsolatedDevices` wraps any devices, reports the level that is available on each, and applies and releases it.
Allocation is decided elsewhere. docs/concepts/gpu-sharing.md says what each level guarantees and what it does not.
"""
