"""Images: how they are built on a user's machine, and what the site's registry of them is made of.

The server runs the registry (`server.registry`), its verbs build and push (`server.commands`). The catalogue of images
is control's.
"""
