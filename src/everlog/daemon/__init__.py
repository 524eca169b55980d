"""The daemon: one HTTP and WebSocket API, and a Unix socket, for every client of a root."""
