"""The Python client of the server."""
