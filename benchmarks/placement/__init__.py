"""Placement policies on a public trace, with the policies and figures of publications as baselines."""
