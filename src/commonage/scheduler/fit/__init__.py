"""Whether and where a request fits: filters with refusals, a table for all requests, the choice of nodes."""
