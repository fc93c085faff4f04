"""Images: building them on a user's node, and the parts of the site's image registry.

The server runs the registry (`server.registry`), its commands build and push (`server.commands`). Control owns the
catalogue of images.
"""
