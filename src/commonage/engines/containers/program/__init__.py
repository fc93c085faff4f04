"""What runs in a container: arguments, variables (GPU shares among them), secrets."""
