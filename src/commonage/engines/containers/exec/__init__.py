"""Commands in running containers, by Docker's API. Standard library only: agents use it too."""
