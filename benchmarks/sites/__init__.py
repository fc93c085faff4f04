"""A hundred appliances on real site links, and a notebook through the tunnel of one."""
