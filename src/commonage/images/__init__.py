"""Builds images, and reads the storage of the site's image registry.

`server.processes.registry` runs the registry, `server.commands` build and push. Control owns the catalogue of images.
"""
