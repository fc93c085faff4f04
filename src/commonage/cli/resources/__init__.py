"""Commands on platform resources, and the git source that applies them."""
