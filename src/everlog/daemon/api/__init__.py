"""The JSON routes of the daemon, one module per group."""
