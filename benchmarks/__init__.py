"""Figures of Commonage, of its parts and of the systems it is compared with: `python -m benchmarks NAME`.

Most benchmarks start a server of their own in a temporary folder. The figures we keep are in
docs/concepts/benchmarks.md. The product never imports this package, and its wheel does not contain it.
"""
