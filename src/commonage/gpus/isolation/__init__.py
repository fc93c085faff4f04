"""How shares are held: one module for each level behind one protocol (`level.Level`), best first.

`devices.IsolatedDevices` stands around any cards, says which level holds on each, and applies and releases it. Who gets
which share is decided elsewhere. docs/concepts/gpu-sharing.md says what each level promises and what it does not.
"""
