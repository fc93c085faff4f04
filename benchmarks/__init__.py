"""Benchmarks of Commonage, of its parts and of baselines: `python -m benchmarks NAME`.

Most benchmarks start their own server in a temporary folder. docs/concepts/benchmarks.md has the published figures. The
product never imports this package, and the wheel does not contain it.
"""
