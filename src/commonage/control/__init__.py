"""Use cases and loops: what turns asks into running work. Async; sees the world only through ports."""
