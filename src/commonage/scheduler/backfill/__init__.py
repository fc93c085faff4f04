"""What may start beside requests that wait longer: promises, reservations, time limits."""
