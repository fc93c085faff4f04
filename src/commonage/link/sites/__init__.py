"""The site link: one connection by which an appliance serves the control plane. It dials; no port is open there.

| question | module |
|---|---|
| requests, messages and streams on one connection | `connection.py` |
| streams, their types and their flow control | `streams.py` |
| which frame is sent next | `outbox.py` |
| binary frames | `frames.py` |
"""
