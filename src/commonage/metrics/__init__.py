"""Telemetry of the platform: metrics for Prometheus, and the stores that keep measurements over time.

Uses control and the ports; made and mounted by the server. `server/logs.py` configures the log.
"""
