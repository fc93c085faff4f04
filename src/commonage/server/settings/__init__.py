"""The settings of the server: the table, its sections, and where values come from."""
