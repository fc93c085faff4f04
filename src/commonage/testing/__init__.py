"""What tests share, shipped with the package so that engines and stores made elsewhere can be held to the same rules.

Contract suites (inherit one, supply its fixtures), fakes with a will of their own, and a clock that obeys.
Nothing of the server imports from here.
"""
