"""`commonage bench`: figures of this installation on this machine, as a client sees them.

Each benchmark starts a server of its own in a temporary folder, so that it measures the program and not what somebody
else runs on it; what is measured and how is said beside each figure. The figures we keep are in
docs/concepts/benchmarks.md.
"""
