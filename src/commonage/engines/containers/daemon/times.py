"""Docker's time stamps. Pure; used by the engines."""

from __future__ import annotations

from datetime import datetime


def instant(text: str) -> float | None:
    """Docker's time stamp as unix seconds; None for its zero."""
    if text.startswith("0001"):
        return None
    # It has nanoseconds; Python reads microseconds.
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return moment + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)
