"""The settings of the server: the table of all settings in sections, the sources of their values, and their display."""
