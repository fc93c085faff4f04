"""What API and portal read. Changes nothing."""
