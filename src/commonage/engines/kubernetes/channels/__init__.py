"""Streams to Pods over WebSocket: commands and ports. The engine uses them; lightkube has none."""
