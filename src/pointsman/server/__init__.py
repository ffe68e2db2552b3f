"""The HTTP server: translates requests to operations and queries of the engine, and their answers to JSON."""
