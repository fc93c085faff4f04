"""Who uses what: processes of devices, usage reports, the watchdog over shares."""
