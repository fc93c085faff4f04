"""Cloud machines through apache-libcloud. Implements `commonage.ports.clouds`."""
