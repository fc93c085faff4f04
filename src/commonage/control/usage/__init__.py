"""Usage: GPU processes by attempt, usage reports, the watchdog over shares."""
