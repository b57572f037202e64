"""The connection to another machine: its settings, keys, keep-alive, and the stream of one request."""
