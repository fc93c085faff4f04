"""Shared by engines whose attempts are containers: the entry, the box, the program inside, and reading its end.

Imported by engines; imports none of them, and knows no daemon's API terms.
"""
