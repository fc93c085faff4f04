"""The checks of `commonage doctor`: this machine, its server and its GPUs."""
