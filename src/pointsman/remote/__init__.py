"""An engine whose database is elsewhere: each operation and each query is a request to a server."""
