"""Test support, shipped with the package so that third-party engines and stores are held to the same rules.

`*_contract.py` are contract suites: inherit one and supply its fixtures. `fakes/` are in-memory implementations of
ports. `factories.py` and `strategies.py` make test data. The server imports nothing of this.
"""
