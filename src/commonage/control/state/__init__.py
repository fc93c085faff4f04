"""The live state of the control plane, and the one writer that changes it."""
