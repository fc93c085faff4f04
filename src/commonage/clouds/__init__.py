"""Machines of clouds, by apache-libcloud. Implements `commonage.ports.clouds`."""
