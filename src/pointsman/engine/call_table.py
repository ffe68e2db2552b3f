"""Written by `make docs`: what identifies the calls of the engine over HTTP."""

DIGEST = "4898efc4d0f5a1f0"
"""Of `calls.describe_calls()`: two sides with the same digest have the same calls."""
