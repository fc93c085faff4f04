"""Nouns and rules of Commonage. Pure: no clock, randomness, input or output.

All other packages import from here; nothing here imports from another package of Commonage.
"""
