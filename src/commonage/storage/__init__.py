"""What is known of the disk under people's homes."""
