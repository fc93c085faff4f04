"""What the platform says of itself: metrics for Prometheus, and the stores that keep measurements over time.

Sees control and the ports; made and mounted by the server. The log is set up in `server/logs.py`.
"""
