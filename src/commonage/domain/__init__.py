"""Nouns and rules of Commonage, pure: no clock, no chance, no input or output.

Everything else imports from here; nothing here imports from anywhere else in the package.
"""
