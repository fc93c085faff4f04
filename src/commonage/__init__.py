"""Commonage: notebook sessions and jobs with a share of a GPU, on nodes held in common.

Only the version lives here, so that importing the package costs nothing. Hatchling reads it at build time.
"""

__version__ = "0.1.0"
