"""`python -m benchmarks`."""

from benchmarks.cli import main

# Processes that a benchmark spawns import this module again.
if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
