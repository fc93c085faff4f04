"""Shares of real GPUs, in one report."""
