"""One connection of a site link, the same on both ends.

| question | module |
|---|---|
| requests, messages and streams on one connection | `connection.py` |
| streams, their types and their flow control | `streams.py` |
| which frame is sent next | `outbox.py` |
| binary frames, and packets in streams | `frames.py`, `packets.py` |
| a TCP connection on a TLS connection of its own | `tunnel_connection.py` |
| who dials these, when, and how many | `tunnel_pool.py` |
"""
