"""Test support, shipped with the package so that third-party engines and stores can be held to the same rules.

Contract suites (inherit one, supply its fixtures), fakes with programmable behaviour, and a manual clock. Nothing of
the server imports from here.
"""
