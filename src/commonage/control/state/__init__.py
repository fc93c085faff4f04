"""What control knows now, and the one writer that changes it."""
