"""The server: settings, data folder, wiring, child processes. The only room that knows all others."""
