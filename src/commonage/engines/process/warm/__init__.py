"""Sessions that are forked from a preloaded process."""
