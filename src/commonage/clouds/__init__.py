"""Cloud nodes through apache-libcloud. Implements `commonage.ports.clouds`."""
