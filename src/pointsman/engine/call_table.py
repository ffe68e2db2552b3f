"""Written by `make docs`: what identifies the calls of the engine over HTTP."""

DIGEST = "db6f772da97e4497"
"""Of `calls.describe_calls()`: two sides with the same digest have the same calls."""
