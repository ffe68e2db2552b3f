"""Written by `make docs`: what identifies the calls of the engine over HTTP."""

DIGEST = "76ce842bf18ecf9d"
"""Of `calls.describe_calls()`: two sides with the same digest have the same calls."""
