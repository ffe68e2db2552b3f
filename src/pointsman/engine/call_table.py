"""Written by `make docs`: what identifies the calls of the engine over HTTP."""

DIGEST = "d1c6f8944419ecd9"
"""Of `calls.describe_calls()`: two sides with the same digest have the same calls."""
