"""Written by `make docs`: what identifies the calls of the engine over HTTP."""

DIGEST = "3a7207a3d4bbb361"
"""Of `calls.describe_calls()`: two sides with the same digest have the same calls."""
