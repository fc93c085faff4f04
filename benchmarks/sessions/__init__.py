"""Sessions and jobs through a whole installation, and through the systems it is compared with."""
