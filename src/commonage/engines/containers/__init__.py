"""What engines share whose attempts are containers: the entry, the box, the program inside, and how its end is read.

Imported by engines; knows none of them, nor any daemon's words.
"""
