"""A tutorial day: scripted students of a class on a Swarm, over HTTPS."""
