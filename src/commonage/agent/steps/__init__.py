"""The steps of joining: each checks the node, says what it would change, and changes it."""
