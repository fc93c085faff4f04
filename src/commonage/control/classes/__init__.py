"""Classes: their use cases, the seats of students, and the loop that starts and ends sessions with each meeting."""
