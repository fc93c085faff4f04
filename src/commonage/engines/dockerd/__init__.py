"""What engines share that talk to a Docker daemon: the connection, its errors in our words, images, and ways out.

Imported by the Docker and the Swarm engine; knows neither.
"""
